// SPDX-License-Identifier: BSD-3-Clause
// LossWatch: detects the loss of a backward pass. LibTorch has no callback for
// the loss, but backward() makes the gradient of its scalar with ones_like. A
// kernel of ones_like therefore receives the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace dtensor::detail {

/// Watches the backward passes of this rank while the object lives. Ignores
/// passes inside a module or another pass, and passes with a given gradient.
class LossWatch {
 public:
  /// Receives the loss, possibly a DTensor, before the pass begins. If the
  /// function throws, backward() rethrows the exception.
  using OnLoss = std::function<void(const at::Tensor&)>;

  explicit LossWatch(OnLoss on_loss);
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  void notify(const at::Tensor& loss) const {
    on_loss_(loss);
  }

 private:
  OnLoss on_loss_;
};

} // namespace dtensor::detail
