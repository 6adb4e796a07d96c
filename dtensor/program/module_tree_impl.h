// SPDX-License-Identifier: BSD-3-Clause
// Modules that hold the tensors of a program under their Python names: styles
// and optimizers take them for the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

/// What a module does with its weight.
enum class Role : uint8_t { kNone, kLinear, kEmbedding, kLayerNorm };

struct NamedTensor {
  std::string name; // "layers.0.fc.weight"
  at::Tensor tensor;
  bool is_buffer = false;
  /// Of a module's weight; that of a product may have any name.
  Role role = Role::kNone;
};

/// "layers.0.fc.weight" -> ("layers.0.fc", "weight").
std::pair<std::string, std::string> split_name(const std::string& name);

/// The root of a tree of modules in the order of the tensors. What has nothing
/// but the weight (and bias) of a linear, an embedding or a layer norm is that
/// module of torch::nn, also with modules below it, and where the parameters of
/// a linear have other names, as nn.MultiheadAttention's in_proj_weight.
std::shared_ptr<torch::nn::Module> module_tree(
    const std::vector<NamedTensor>& tensors);

} // namespace dtensor::detail
