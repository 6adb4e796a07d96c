// SPDX-License-Identifier: BSD-3-Clause
// Modules that hold the tensors of a model under their Python names. Parallel
// styles and optimizers treat them as the model, although its code is not in
// C++. A Program has such modules (program/program.h).
//
//   const auto model = module_tree({
//       {"up.weight", up, false, WeightRole::kLinear},
//       {"down.weight", down, false, WeightRole::kLinear}});
//   parallelize_module(*model, mesh, {{"up", ColwiseParallel()}});
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Use of a weight by its module.
enum class WeightRole : uint8_t { kNone, kLinear, kEmbedding, kLayerNorm };

/// A parameter or buffer, and its place in the model.
struct ModuleTensor {
  std::string name; // "layers.0.fc.weight"
  at::Tensor tensor;
  bool is_buffer = false;
  /// Role if the tensor is a module's weight. A linear's weight may have any
  /// name.
  WeightRole role = WeightRole::kNone;
};

/// Returns the root of a module tree, in the order of the tensors. A module
/// that holds only the weight (and bias) of a linear, an embedding or a layer
/// norm becomes that torch::nn module, also if it has submodules. The
/// parameters of a linear may have other names, such as nn.MultiheadAttention's
/// in_proj_weight. The modules hold the given tensors themselves.
DTENSOR_API std::shared_ptr<torch::nn::Module> module_tree(
    const std::vector<ModuleTensor>& tensors);

} // namespace dtensor
