// SPDX-License-Identifier: BSD-3-Clause
// Variants that follow from another operator's rule.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/op_info_impl.h>

#include <optional>

namespace dtensor::detail {

/// For op.out: the overload that takes the same arguments and returns the
/// result. Nothing if there is none.
std::optional<c10::OperatorHandle> functional_of_out(
    const c10::OperatorHandle& op);

/// For op_: the same for op, if it has an overload that takes the same.
std::optional<c10::OperatorHandle> functional_of_in_place(
    const c10::OperatorHandle& op);

/// Calls `functional` on the arguments of op_, which are replicated if it has
/// no rule, or become so (ops/on_missing_rule_impl.h), and copies what it
/// returns into the first one. False, and nothing done, for other arguments and
/// where that would not be what op_ does: its result has another shape, or a
/// dtype that does not fit.
bool run_in_place_variant(
    const OpInfo& info,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack);

/// Calls `functional` and copies what it returns into the out arguments.
void run_out_variant(
    const c10::OperatorHandle& op,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack);

/// Whether all distributed inputs of op.out are replicated, and all outs are
/// distributed.
bool inputs_are_replicated(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args);

/// Calls op.out of such inputs on their local tensors and copies what it gives
/// into the out arguments.
void run_out_on_replicated(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail
