// SPDX-License-Identifier: BSD-3-Clause
// What LibTorch's optimizers keep of one parameter, by Python's names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace dtensor::detail {

struct OptimizerFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, int64_t*>> numbers;
};

/// An optimizer that keeps tensors of the size of each parameter.
class KnownOptimizer {
 public:
  virtual ~KnownOptimizer() = default;
  /// What it has of a parameter before the first step.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make() const = 0;
  virtual OptimizerFields fields(
      torch::optim::OptimizerParamState& state) const = 0;
};

/// Throws NotImplementedError in the name of `where` for an optimizer other
/// than SGD, Adam, AdamW, Adagrad and RMSprop.
std::unique_ptr<KnownOptimizer> known_optimizer(
    const torch::optim::Optimizer& optimizer,
    const char* where);

} // namespace dtensor::detail
