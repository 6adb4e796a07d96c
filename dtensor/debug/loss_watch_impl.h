// SPDX-License-Identifier: BSD-3-Clause
// LossWatch: hears of the tensor that a backward pass begins at. LibTorch tells
// nobody, so it keeps the last numbers that operators made and recorded, and
// looks which of them the pass begins at.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/torch_nodes_impl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

namespace dtensor::detail {

class LossWatch final : public OperatorObserver {
 public:
  /// Gets the loss, which may be a DTensor, without history. May throw: the
  /// backward pass then ends with that error.
  using OnLoss = std::function<void(const at::Tensor&)>;

  explicit LossWatch(OnLoss on_loss);

  void on_begin(const at::RecordFunction& call) override;
  void on_end(const at::RecordFunction& call) override;

 private:
  struct Number {
    WeakNode node{NodePtr()};
    at::Tensor value;
  };

  std::shared_ptr<OnLoss> on_loss_; // null in hooks that outlive this
  std::array<Number, 16> numbers_;  // the last ones, in a ring
  size_t next_ = 0;
  int last_pass_ = -1;
  OperatorObserverGuard guard_{*this, Heard::kOutputs};
};

} // namespace dtensor::detail
