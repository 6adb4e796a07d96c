// SPDX-License-Identifier: BSD-3-Clause
// Paths of a gradient in and out of a region: sequences of the steps in
// layout_steps_impl.h for an input and for the result.
#pragma once

#include <dtensor/layout/spec_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>

#include <memory>
#include <optional>
#include <utility>

namespace dtensor::detail {

inline bool moves(const Spec& from, const Spec& to) {
  return from.placements() != to.placements();
}

inline bool moves(const Conversion& input) {
  return moves(*input.from, *spec_of(input.value));
}

inline bool moves(const Spec& made, const ResultConversion& exit) {
  return exit.to != nullptr && moves(made, *exit.to);
}

// Starts the redistribution that from_local's backward will need.
inline at::Tensor start_redistribution(
    const FromLocalStep& step,
    at::Tensor grad) {
  const auto to = spec_of(grad)->with_placements(step.grad_layout);
  return redistribute_autograd(std::move(grad), to, {.async_op = true});
}

// Backward steps of an input: from the gradient of the local tensor in the
// region to the gradient of the tensor outside.
class InputBackward {
 public:
  explicit InputBackward(const Conversion& input)
      : to_local_{
            spec_of(input.value),
            input.gradient,
            input.origin.is_same(input.value) && input.origin.is_leaf()} {
    const bool alone = communicates_in_background(input.from->mesh());
    if (moves(input)) {
      further().redistribute =
          RedistributeStep{input.from, input.from->dtype(), alone};
    }
    if (!is_dtensor(input.origin)) {
      further().from_local = FromLocalStep{
          input.from,
          without_partial(input.from->placements()),
          input.origin.is_leaf()};
    }
    if (further_ && alone) {
      const auto outside = without_partial(input.from->placements());
      further_->is_async =
          input.gradient->placements() != PlacementsRef(outside);
    }
  }

  /// True if the gradient is in flight after begin().
  bool is_async() const {
    return further_ && further_->is_async;
  }
  /// Runs the steps up to the first wait for communication.
  at::Tensor begin(at::Tensor grad) const {
    if (records(grad)) {
      name_missing_derivative(grad);
    }
    grad = to_local_.backward(std::move(grad));
    if (further_ && further_->redistribute) {
      grad = further_->redistribute->backward(std::move(grad));
    }
    return is_async() && further_->from_local
        ? start_redistribution(*further_->from_local, std::move(grad))
        : grad;
  }
  at::Tensor finish(at::Tensor grad) const {
    return further_ && further_->from_local
        ? further_->from_local->backward(std::move(grad))
        : grad;
  }

 private:
  // Optional steps. They are allocated separately because most inputs have
  // none, and nodes should stay small.
  struct Further {
    std::optional<RedistributeStep> redistribute;
    std::optional<FromLocalStep> from_local; // for a plain tensor
    bool is_async = false;
  };
  Further& further() {
    if (further_ == nullptr) {
      further_ = std::make_unique<Further>();
    }
    return *further_;
  }

  ToLocalStep to_local_;
  std::unique_ptr<Further> further_;
};

// Keys of tensors whose values differ from the contents of their memory.
inline constexpr c10::DispatchKeySet kReadOtherwise{
    c10::DispatchKey::Conjugate,
    c10::DispatchKey::Negative,
    c10::DispatchKey::ZeroTensor};

// Backward steps of the result: from the gradient of the tensor outside to the
// gradient of the local tensor in the region.
class ResultBackward {
 public:
  ResultBackward(const SpecPtr& made, const ResultConversion& exit)
      : from_local_{made, without_partial(made->placements())},
        is_local_(exit.as_local && !moves(*made, exit)) {
    if (moves(*made, exit)) {
      redistribute_ = RedistributeStep{made, made->dtype()};
      if (exit.as_local) {
        to_local_ = ToLocalStep{
            exit.to,
            gradient_spec(*exit.to, without_partial(exit.to->placements()))};
      }
    }
  }

  at::Tensor backward(at::Tensor grad) const {
    if (C10_UNLIKELY(replicas_observed())) {
      notify_gradient(grad);
    }
    if (is_local_) {
      return grad;
    }
    if (stays(grad)) {
      return in_memory_order(std::move(grad), to_local_->grad_spec->strides());
    }
    if (to_local_) {
      grad = to_local_->backward(std::move(grad));
    }
    if (redistribute_) {
      grad = redistribute_->backward(std::move(grad));
    }
    return from_local_.backward(std::move(grad));
  }

 private:
  void notify_gradient(const at::Tensor& grad) const {
    if (is_dtensor(grad)) {
      notify_replicas(ReplicaKind::kGradient, grad);
      return;
    }
    const auto& made = *from_local_.forward;
    notify_replica_observers(
        {.kind = ReplicaKind::kGradient,
         .tensor = grad,
         .mesh = made.mesh(),
         .placements = to_local_ ? to_local_->grad_spec->placements()
                                 : PlacementsRef(from_local_.grad_layout)});
  }

  // True if the steps would return the gradient unchanged. The gradient of a
  // sum over ranks is the same for each rank's term.
  bool stays(const at::Tensor& grad) const {
    if (!to_local_ || is_dtensor(grad) || records(grad)) {
      return false;
    }
    const auto& spec = *to_local_->grad_spec;
    return spec.placements() == PlacementsRef(from_local_.grad_layout) &&
        spec.dtype() == from_local_.forward->dtype() &&
        grad.scalar_type() == spec.dtype() &&
        grad.sizes() == spec.local_sizes() &&
        !grad.key_set().has_any(kReadOtherwise);
  }

  FromLocalStep from_local_;
  bool is_local_;
  std::optional<RedistributeStep> redistribute_;
  std::optional<ToLocalStep> to_local_; // for a plain tensor
};

// True if a plain tensor can enter unchanged, because neither its layout nor
// its gradient's layout changes.
bool passes_through(const Conversion& input) {
  return !is_dtensor(input.origin) && !moves(input) &&
      input.gradient->placements() ==
      PlacementsRef(without_partial(input.from->placements()));
}

} // namespace dtensor::detail
