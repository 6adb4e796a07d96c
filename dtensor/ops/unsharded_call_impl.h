// SPDX-License-Identifier: BSD-3-Clause
// Calls of operators with unsharded operands (ops/unsharded_source_impl.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/unsharded_source_impl.h>

#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// Returns the source of a tensor, lost or not; null for most.
inline std::shared_ptr<UnshardedSource> source_if_held(const at::Tensor& t) {
  return is_dtensor(t) ? held_source_of(t) : nullptr;
}

/// Unsharded operands of one call; returned to their sources when the call
/// ends.
class UnshardedOperands {
 public:
  UnshardedOperands() = default;
  UnshardedOperands(const UnshardedOperands&) = delete;
  UnshardedOperands& operator=(const UnshardedOperands&) = delete;
  ~UnshardedOperands();

  at::Tensor take(const std::shared_ptr<UnshardedSource>& source);
  void give_back(at::TensorList results);
  /// Returns the dtype of the other operands, if a source requires one.
  std::optional<at::ScalarType> operand_dtype() const;

 private:
  std::vector<std::shared_ptr<UnshardedSource>> taken_;
};

/// Calls the operator with the unsharded values of operands that have sources.
/// Casts other floating-point operands that it reads to the dtype that a source
/// requires.
void call_with_unsharded(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

} // namespace dtensor::detail
