// SPDX-License-Identifier: BSD-3-Clause
// LossWatch: detects the root tensor of a backward pass. LibTorch has no
// callback for it. LossWatch therefore keeps the last recorded scalars, and
// looks up the one that a backward pass starts from.
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
  /// Receives the loss, possibly a DTensor, without history. May throw, which
  /// ends the backward pass with that error.
  using OnLoss = std::function<void(const at::Tensor&)>;

  explicit LossWatch(OnLoss on_loss);

  void on_begin(const at::RecordFunction& call) override;
  void on_end(const at::RecordFunction& call) override;

 private:
  struct Number {
    WeakNode node{NodePtr()};
    at::Tensor value;
  };

  std::shared_ptr<OnLoss> on_loss_; // null in hooks that outlive the object
  std::array<Number, 16> numbers_;  // ring buffer of the last scalars
  size_t next_ = 0;
  int last_pass_ = -1;
  OperatorObserverGuard guard_{*this, ObservedEvents::kOutputs};
};

} // namespace dtensor::detail
