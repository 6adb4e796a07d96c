// SPDX-License-Identifier: BSD-3-Clause
// Running an operator inside the boundary that rides on its parameter, if any.
#pragma once

#include <dtensor/comm/observer.h>
#include <dtensor/ops/slot_impl.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <utility>

namespace dtensor::detail {

/// The boundary whose operator runs on this thread.
inline thread_local const Boundary* applied_boundary = nullptr;

/// While it lives, the operators that another one decomposes into do not apply
/// its boundary again.
class AppliedBoundary {
 public:
  explicit AppliedBoundary(const Boundary* boundary)
      : outer_(std::exchange(applied_boundary, boundary)) {}
  ~AppliedBoundary() {
    applied_boundary = outer_;
  }
  AppliedBoundary(const AppliedBoundary&) = delete;
  AppliedBoundary& operator=(const AppliedBoundary&) = delete;

 private:
  const Boundary* outer_;
};

/// The boundary that a call has yet to apply; null for most calls.
inline BoundaryPtr find_boundary(
    const OpInfo& info,
    const torch::jit::Stack& stack) {
  const auto& role = info.traits.boundary;
  if (!role) {
    return nullptr;
  }
  const auto& value = last_args(stack, info.num_args)[role->parameter];
  if (!value.isTensor() || !is_dtensor(value.toTensor())) {
    return nullptr;
  }
  const auto& boundaries = meta_of(value.toTensor()).boundaries;
  if (boundaries == nullptr) {
    return nullptr;
  }
  if (boundaries->get(role->kind) == nullptr) {
    refresh_boundaries(value.toTensor(), role->kind);
  }
  const auto& boundary = boundaries->get(role->kind);
  return boundary.get() == applied_boundary ? nullptr : boundary;
}

/// Calls `run_inner()`, which takes the arguments from the stack and leaves the
/// result there, on the input and with the output that the boundary makes.
template <class Run>
void with_boundary(
    const OpInfo& info,
    torch::jit::Stack* stack,
    const Run& run_inner) {
  const auto boundary = find_boundary(info, *stack);
  if (boundary == nullptr) {
    run_inner();
    return;
  }
  const auto& role = *info.traits.boundary;
  visit_tensors(
      last_args(*stack, info.num_args), [&](const at::Tensor& t, size_t, int) {
        refresh_boundaries(t, role.kind);
      });
  const ModuleScope scope(boundary->module_name());
  const auto base = stack->size() - info.num_args;
  auto& input = (*stack)[base + role.input];
  input = boundary->prepare_input(input.toTensor());
  {
    const AppliedBoundary applied(boundary.get());
    if (boundary->multiplies()) {
      auto product = multiply_by_boundary(
          *boundary, role, last_args(*stack, info.num_args));
      if (product.defined()) {
        torch::jit::drop(*stack, info.num_args);
        stack->emplace_back(std::move(product));
        return;
      }
    }
    run_inner();
  }
  auto& output = stack->back();
  output = boundary->finish_output(output.toTensor());
}

} // namespace dtensor::detail
