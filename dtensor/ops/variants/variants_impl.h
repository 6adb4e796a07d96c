// SPDX-License-Identifier: BSD-3-Clause
// Variants of an operator that follow from another operator's rule.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/path/op_info_impl.h>

#include <optional>

namespace dtensor::detail {

/// For op.out, returns the overload that takes the same arguments and returns
/// the result. Empty if no such overload exists.
std::optional<c10::OperatorHandle> functional_of_out(
    const c10::OperatorHandle& op);

/// For op_, returns the overload of op that takes the same arguments. Empty if
/// no such overload exists.
std::optional<c10::OperatorHandle> functional_of_in_place(
    const c10::OperatorHandle& op);

/// Calls `functional` on the arguments of op_ and copies the result into the
/// first argument. If `functional` has no rule, the arguments must be
/// replicated, or are redistributed to Replicate
/// (ops/scopes/on_missing_rule.cpp). Returns false, and does nothing, for
/// other arguments and if the effect would differ from that of op_: the result
/// has another shape, or a dtype that does not convert.
bool run_in_place_variant(
    const OpInfo& info,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack);

/// Calls `functional` and copies its results into the out arguments.
void run_out_variant(
    const c10::OperatorHandle& op,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack);

/// Returns true if all distributed inputs of op.out are replicated, and all
/// outs are distributed.
bool inputs_are_replicated(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args);

/// Calls op.out on the local tensors of replicated inputs, and copies the
/// results into the out arguments.
void run_out_on_replicated(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail
