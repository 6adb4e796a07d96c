// SPDX-License-Identifier: BSD-3-Clause
// A call on the wholes of its operands (ops/whole_source_impl.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/whole_source_impl.h>

#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// The source that a tensor has, lost or not; null for most.
inline std::shared_ptr<WholeSource> source_if_held(const at::Tensor& t) {
  return is_dtensor(t) ? held_source_of(t) : nullptr;
}

/// The wholes of one call's operands, which their sources get back when the
/// call is over.
class TakenWholes {
 public:
  TakenWholes() = default;
  TakenWholes(const TakenWholes&) = delete;
  TakenWholes& operator=(const TakenWholes&) = delete;
  ~TakenWholes();

  at::Tensor take(const std::shared_ptr<WholeSource>& source);
  void give_back(at::TensorList results);
  /// Dtype of the other operands, if a source asks for one.
  std::optional<at::ScalarType> operand_dtype() const;

 private:
  std::vector<std::shared_ptr<WholeSource>> taken_;
};

/// Calls the operator with the wholes of operands that have sources. Other
/// floating-point operands that it reads are cast to the dtype that a source
/// asks for.
void call_on_wholes(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace dtensor::detail
