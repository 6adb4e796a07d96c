// SPDX-License-Identifier: BSD-3-Clause
// Converts the code of a TorchScript model to a graph of operators.
#pragma once

#include <dtensor/contrib/torchscript/script_modules_impl.h>
#include <dtensor/program/operator_graph.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <vector>

namespace dtensor::torchscript {

/// Arguments of forward(); nothing for an unknown argument.
using ScriptInputs = std::vector<std::optional<c10::IValue>>;

struct ReadScript {
  OperatorGraph graph;
  size_t num_products = 0; // includes embeddings
  size_t num_unread = 0;
};

/// Reads the calls that `forward` makes for these inputs, with all numbers
/// evaluated. Follows conditions that depend on attributes, None and the number
/// of dimensions. A call without an operator stands for each other condition,
/// loop, or call that needs data, and for the calls that use its results.
/// `tensors` are all tensors of the script. The script is
/// not changed, and no weight is read.
ReadScript read_script(
    const torch::jit::Module& script,
    const torch::jit::Graph& forward,
    const std::vector<ModuleTensor>& tensors,
    const ScriptInputs& inputs);

/// Runs a function that only TorchScript has: lists, tuples, numbers, queries.
void run_function(const torch::jit::Node& node, torch::jit::Stack& stack);

/// Returns true if the results contain tensors that are not among the
/// arguments.
bool makes_tensors(
    const torch::jit::Stack& results,
    const torch::jit::Stack& given);

/// A script's calls, and modules that hold its tensors.
struct ScriptGraph {
  OperatorGraph graph;
  std::shared_ptr<torch::nn::Module> modules;
};

/// Reads forward() for these inputs. Inputs at the end may be omitted if they
/// have defaults. Without inputs, tries inputs of the shapes that the weights
/// suggest and keeps those for which most calls can be read. Throws ValueError
/// for a script without forward() and for inputs that it does not accept.
ScriptGraph graph_of_script(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& inputs);

} // namespace dtensor::torchscript
