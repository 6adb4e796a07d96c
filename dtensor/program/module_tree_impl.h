// SPDX-License-Identifier: BSD-3-Clause
// Modules that hold the tensors of a program under their Python names. Parallel
// styles and optimizers treat them as the model.
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

/// Use of a weight by its module.
enum class Role : uint8_t { kNone, kLinear, kEmbedding, kLayerNorm };

struct NamedTensor {
  std::string name; // "layers.0.fc.weight"
  at::Tensor tensor;
  bool is_buffer = false;
  /// Role if the tensor is a module's weight. A linear's weight may have any
  /// name.
  Role role = Role::kNone;
};

/// "layers.0.fc.weight" -> ("layers.0.fc", "weight").
std::pair<std::string, std::string> split_name(const std::string& name);

/// Returns the root of a module tree, in the order of the tensors. A module
/// that holds only the weight (and bias) of a linear, an embedding or a layer
/// norm becomes that torch::nn module, also if it has submodules. The
/// parameters of a linear may have other names, such as nn.MultiheadAttention's
/// in_proj_weight.
std::shared_ptr<torch::nn::Module> module_tree(
    const std::vector<NamedTensor>& tensors);

} // namespace dtensor::detail
