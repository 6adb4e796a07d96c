// SPDX-License-Identifier: BSD-3-Clause
// The modules of a model, as tables name them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct ModuleInfo {
  std::string name; // full: "layers.0.w1"; "" for the model itself
  std::string type; // "torch::nn::LinearImpl"
  size_t depth = 0;
  NamedTensors parameters; // its own, by their names in it
  NamedTensors buffers;
  const torch::nn::Module* module = nullptr;
};

/// The model and all modules in it, parents first.
std::vector<ModuleInfo> modules_of(const torch::nn::Module& model);

} // namespace dtensor::detail
