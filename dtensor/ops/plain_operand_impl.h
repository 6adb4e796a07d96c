// SPDX-License-Identifier: BSD-3-Clause
// Plain tensors beside DTensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Throws for a plain tensor that need not be the same on every rank: one of
/// several elements, unless implicit_replication is on. It is argument `arg` of
/// the operator, and `beside` the spec of a DTensor among the others.
void check_plain_operand(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside);

/// True where a plain tensor may become a term of a sum over ranks: in an
/// implicit_replication() scope, and in a gradient formula.
bool may_split_plain();

/// Throws for a plain tensor that `decision` brings to Partial: rank 0 would
/// have all of it, and what other ranks have would be lost. A number that the
/// program has as a Scalar may be split.
void check_plain_is_not_split(
    const OpInfo& info,
    const OpCall& call,
    const Decision& decision);

/// For an operator of OpTraits::takes_plain: among its arguments, all
/// distributed ones replicated, those plain ones become DTensors that would be
/// refused, after the ranks of the mesh have compared them. Throws ValueError
/// where they differ. A gradient to go back to one, or a gradient formula as
/// the caller, leaves them to check_plain_operand().
void place_same_plain(const OpInfo& info, c10::IValue* args);

} // namespace dtensor::detail
