// SPDX-License-Identifier: BSD-3-Clause
// The modules of a model, for tables.
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
  std::string name; // full name: "layers.0.w1"; "" for the model
  std::string type; // "torch::nn::LinearImpl"
  size_t depth = 0;
  NamedTensors parameters; // direct parameters, by local name
  NamedTensors buffers;
  const torch::nn::Module* module = nullptr;
};

/// Returns the model and all its submodules, parents first.
std::vector<ModuleInfo> modules_of(const torch::nn::Module& model);

} // namespace dtensor::detail
