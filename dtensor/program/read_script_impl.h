// SPDX-License-Identifier: BSD-3-Clause
// From the code of a TorchScript model to a graph of operators, as that of an
// exported program is (graph_impl.h).
#pragma once

#include <dtensor/program/program_state_impl.h>
#include <dtensor/program/script_modules_impl.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// An argument of forward(); nothing: of which nothing is known.
using ScriptInputs = std::vector<std::optional<c10::IValue>>;

struct ReadScript {
  ProgramState state;      // on meta
  size_t num_products = 0; // and embeddings
  size_t num_unread = 0;
};

/// The calls that `forward` makes for such inputs, with all numbers in place.
/// Of conditions those are followed that attributes, None and the number of
/// dimensions decide; for what depends on more, loops, and calls that need
/// data, an Unread stands, and for all calls of what these give. `tensors` are
/// all that the script has. Nothing of it is changed, and no weight read.
ReadScript read_script(
    const torch::jit::Module& script,
    const torch::jit::Graph& forward,
    const std::vector<NamedTensor>& tensors,
    const ScriptInputs& inputs);

/// Carries out what only TorchScript has: lists, tuples, numbers, questions.
void run_function(const torch::jit::Node& node, torch::jit::Stack& stack);

/// Whether the results have tensors that were not given.
bool makes_tensors(
    const torch::jit::Stack& results,
    const torch::jit::Stack& given);

/// Of forward() for these inputs, the last of which may be left out if they
/// have defaults; if there are none, for those of the shapes that its weights
/// suggest for which most can be read. Throws ValueError for a script without
/// forward() and for inputs that it does not take.
ProgramState state_of_script(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& inputs);

} // namespace dtensor::detail
