// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a TorchScript model, and the calls that use its weights.
#pragma once

#include <dtensor/program/module_tree.h>

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

namespace dtensor::torchscript {

/// Returns the kind of a node, such as "aten::linear".
std::string_view kind_of(const torch::jit::Node& node);

/// Returns a copy of the graph of forward() with all functions and submodules
/// inlined, or null if there is no forward().
std::shared_ptr<torch::jit::Graph> inlined_forward(
    const torch::jit::Module& script);

/// A call with a weight, in any of its forms.
struct WeightCall {
  WeightRole role = WeightRole::kNone;
  const torch::jit::Value* weight = nullptr; // of a product: (out, in)
  const torch::jit::Value* input = nullptr;
  const torch::jit::Value* bias = nullptr; // null: no bias
};

/// Recognizes linear, embedding and layer_norm. matmul, mm and addmm with a
/// transposed weight count as linear.
std::optional<WeightCall> weight_call(const torch::jit::Node& node);

/// Returns "layers.0.fc.weight" for a value reached through the script's
/// attributes, and an empty text for other values.
std::string attribute_name(const torch::jit::Value& value);

/// Returns parameters and buffers. A weight's role comes from the Python class
/// of its module, or else from the calls of `forward`.
std::vector<ModuleTensor> script_tensors(
    const torch::jit::Module& script,
    const torch::jit::Graph* forward);

} // namespace dtensor::torchscript
