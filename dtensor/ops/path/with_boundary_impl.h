// SPDX-License-Identifier: BSD-3-Clause
// Execution of an operator inside the boundary attached to its parameter, if
// any.
#pragma once

#include <c10/util/ScopeExit.h>
#include <dtensor/comm/observer.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {

/// Boundary whose operator runs on this thread.
inline thread_local const Boundary* applied_boundary = nullptr;

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

/// Redistributes the output, a DTensor without autograd history, to the layout
/// of `boundary`, which may be null.
inline void convert_unrecorded(
    const Boundary* boundary,
    torch::jit::Stack* stack) {
  if (boundary != nullptr) {
    const auto output = std::move(stack->back()).toTensor();
    const auto& made = spec_of(output);
    stack->back() = convert_unrecorded_result(
        local_of(output), made, boundary->exit_of(made));
  }
}

/// Calls Boundary::multiply with the arguments of an operator with this `role`.
/// Returns an undefined tensor if multiply() does not apply, as for factors
/// other than 1 in addmm (beta * bias + alpha * input * parameter).
inline at::Tensor multiply_by_boundary(
    const Boundary& boundary,
    const BoundaryRole& role,
    c10::ArrayRef<c10::IValue> args) {
  if (role.kind != BoundaryKind::kLinear ||
      std::ranges::any_of(args, [](const auto& value) {
        return value.isScalar() && !value.toScalar().equal(1);
      })) {
    return {};
  }
  const auto parameter = args[role.parameter].toTensor();
  const bool has_bias = role.bias && !args[*role.bias].isNone();
  return boundary.multiply(
      args[role.input].toTensor(),
      role.transposed ? parameter.t() : parameter,
      has_bias ? args[*role.bias].toTensor() : at::Tensor());
}

/// Handles add_(self, other, alpha) with a plain self and the bias of a styled
/// module: adds this rank's shard of the bias. Returns false, and does nothing,
/// for other calls.
bool add_module_bias(torch::jit::Stack* stack);

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
  // The operators of a decomposition do not apply the boundary of the composite
  // operator again.
  const auto* const outer = std::exchange(applied_boundary, &boundary);
  const auto restore = c10::make_scope_exit([&] { applied_boundary = outer; });
  if (auto product = multiply_by_boundary(boundary, role, args);
      product.defined()) {
    torch::jit::drop(*stack, info.num_args);
    stack->emplace_back(std::move(product));
    return;
  }
  run_inner(nullptr, Conversion());
  auto& output = stack->back();
  const auto made = output.toTensor();
  output = has_bias || made.dim() == 2 ? boundary.finish_output(input, made)
                                       : boundary.finish_product(input, made);
}

/// Calls `run_inner` on the input that `boundary` converts.
template <class Run>
void apply_boundary(
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
  auto& input = mutable_args(stack, info.num_args)[role.input];
  const bool observed = replicas_observed();
  if (C10_UNLIKELY(observed)) {
    boundary->input().notify(ReplicaKind::kInput, input.toTensor());
  }
  const bool runs_as_region = info.is_region && !info.rule->kernel;
  if (!runs_as_region || !boundary->only_layouts()) {
    input = boundary->input().convert(input.toTensor());
    around_boundary(info, *boundary, stack, run_inner);
  } else {
    auto conversion = boundary->input().convert_for_region(input.toTensor());
    input = std::move(conversion.value);
    run_inner(boundary.get(), conversion);
  }
  if (C10_UNLIKELY(observed)) {
    boundary->notify_output(stack->back().toTensor());
  }
}

/// Calls `run_inner(boundary, conversion)`, with the input converted by the
/// parameter's boundary, if any. `run_inner` pops the arguments from the stack,
/// calls the operator, redistributes the result to the layout of `boundary`,
/// which may be null, and pushes it. `conversion` has the origin of the input,
/// if the operator must connect the input to it. Errors name the module.
template <class Run>
void with_boundary(
    const OpInfo& info,
    torch::jit::Stack* stack,
    const Run& run_inner) {
  const auto boundary = find_boundary(info, *stack);
  if (boundary == nullptr) {
    run_inner(nullptr, Conversion());
    return;
  }
  try {
    apply_boundary(info, boundary, stack, run_inner);
  } catch (c10::Error& error) {
    name_module(error, boundary->description());
    throw;
  }
}

} // namespace dtensor::detail
