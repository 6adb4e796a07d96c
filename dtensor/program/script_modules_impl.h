// SPDX-License-Identifier: BSD-3-Clause
// What a TorchScript model holds, and which of its calls take its weights.
#pragma once

#include <dtensor/program/module_tree_impl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch::jit {
struct Graph;
struct Module;
struct Node;
struct Value;
} // namespace torch::jit

namespace dtensor::detail {

/// "aten::linear".
std::string_view kind_of(const torch::jit::Node& node);

/// A copy of the graph of forward() in which the calls of its functions and
/// submodules are replaced by what they do; null if there is no forward().
std::shared_ptr<torch::jit::Graph> inlined_forward(
    const torch::jit::Module& script);

/// A call with a weight, however it is written.
struct WeightCall {
  Role role = Role::kNone;
  const torch::jit::Value* weight = nullptr; // of a product: (out, in)
  const torch::jit::Value* input = nullptr;
  const torch::jit::Value* bias = nullptr; // null: none
};

/// linear, embedding and layer_norm; matmul, mm and addmm by the transposed
/// weight are linear.
std::optional<WeightCall> weight_call(const torch::jit::Node& node);

/// "layers.0.fc.weight" of a value that the script's attributes lead to; empty
/// for others.
std::string attribute_name(const torch::jit::Value& value);

/// Parameters and buffers. What a module does with its weight its Python class
/// tells, or else the calls of `forward`.
std::vector<NamedTensor> script_tensors(
    const torch::jit::Module& script,
    const torch::jit::Graph* forward);

} // namespace dtensor::detail
