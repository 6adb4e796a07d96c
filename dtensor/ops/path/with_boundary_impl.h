// SPDX-License-Identifier: BSD-3-Clause
// Execution of an operator inside the boundary attached to its parameter, if
// any.
#pragma once

#include <dtensor/comm/observer.h>
#include <dtensor/ops/path/boundary_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>

#include <utility>

namespace dtensor::detail {

/// Boundary whose operator runs on this thread.
inline thread_local const Boundary* applied_boundary = nullptr;

/// Scope in which the operators of a decomposition do not apply the boundary of
/// the composite operator again.
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

/// Returns the boundary that a call must still apply; null for most calls.
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

/// The part of a module's boundary that the operator itself applies: bringing
/// input and output to their layouts.
struct BoundaryConversion {
  const Boundary* boundary = nullptr; // null: nothing to apply
  size_t input_arg = 0;
  at::Tensor origin; // see ModuleInput
  SpecPtr from;
};

inline ResultConversion exit_of(
    const BoundaryConversion& crossing,
    const SpecPtr& made) {
  return crossing.boundary == nullptr ? ResultConversion()
                                      : crossing.boundary->exit_of(made);
}

/// Brings the output, a DTensor without autograd history, to its layout.
inline void leave_boundary(
    const BoundaryConversion& crossing,
    torch::jit::Stack* stack) {
  if (crossing.boundary != nullptr) {
    const auto output = std::move(stack->back()).toTensor();
    const auto& made = spec_of(output);
    stack->back() = leave_unrecorded(
        local_of(output), made, crossing.boundary->exit_of(made));
  }
}

/// Applies a boundary that does more than change layouts. Calls `run_inner`.
template <class Run>
void around_boundary(
    const OpInfo& info,
    const Boundary& boundary,
    torch::jit::Stack* stack,
    const Run& run_inner) {
  const auto& role = *info.traits.boundary;
  const auto args = last_args(*stack, info.num_args);
  const auto input = args[role.input].toTensor();
  const bool has_bias = role.bias && !args[*role.bias].isNone();
  const AppliedBoundary applied(&boundary);
  if (auto product = multiply_by_boundary(boundary, role, args);
      product.defined()) {
    torch::jit::drop(*stack, info.num_args);
    stack->emplace_back(std::move(product));
    return;
  }
  run_inner(BoundaryConversion());
  auto& output = stack->back();
  const auto made = output.toTensor();
  output = has_bias || made.dim() == 2 ? boundary.finish_output(input, made)
                                       : boundary.finish_product(input, made);
}

/// Calls `run_inner` on the input that `boundary` prepares.
template <class Run>
void cross_boundary(
    const OpInfo& info,
    const BoundaryPtr& boundary,
    torch::jit::Stack* stack,
    const Run& run_inner) {
  const auto& role = *info.traits.boundary;
  visit_tensors(
      last_args(*stack, info.num_args), [&](const at::Tensor& t, size_t, int) {
        refresh_boundaries(t, role.kind);
      });
  const ModuleScope scope(boundary->module_name());
  auto& input = (*stack)[stack->size() - info.num_args + role.input];
  const bool observed = replicas_observed();
  if (C10_UNLIKELY(observed)) {
    boundary->notify_input(input.toTensor());
  }
  const bool runs_as_region = info.is_region && !info.rule->kernel;
  if (!runs_as_region || !boundary->only_layouts()) {
    input = boundary->prepare_input(input.toTensor());
    around_boundary(info, *boundary, stack, run_inner);
    if (C10_UNLIKELY(observed)) {
      boundary->notify_output(stack->back().toTensor());
    }
    return;
  }
  auto [value, origin, from] = boundary->take_input(input.toTensor());
  input = std::move(value);
  run_inner(BoundaryConversion{
      boundary.get(), role.input, std::move(origin), std::move(from)});
  if (C10_UNLIKELY(observed)) {
    boundary->notify_output(stack->back().toTensor());
  }
}

/// Calls `run_inner(crossing)` on the input that the boundary prepares.
/// `run_inner` takes the arguments from the stack and pushes the result. Errors
/// name the module.
template <class Run>
void with_boundary(
    const OpInfo& info,
    torch::jit::Stack* stack,
    const Run& run_inner) {
  const auto boundary = find_boundary(info, *stack);
  if (boundary == nullptr) {
    run_inner(BoundaryConversion());
    return;
  }
  try {
    cross_boundary(info, boundary, stack, run_inner);
  } catch (c10::Error& error) {
    name_module(error, boundary->describe());
    throw;
  }
}

} // namespace dtensor::detail
