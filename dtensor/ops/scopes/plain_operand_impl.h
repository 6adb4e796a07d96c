// SPDX-License-Identifier: BSD-3-Clause
// Checks of operands, and conversions of plain tensors beside DTensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/strategy.h>

#include <string_view>

namespace dtensor::detail {

/// Throws for a plain tensor that is sparse, Mkldnn, quantized or nested. The
/// tensor is argument `arg` of the operator, and `beside` is the spec of a
/// DTensor among the other arguments.
void check_plain_format(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside);

/// Throws for a plain tensor that may differ between ranks, namely one of
/// several elements, unless implicit_replication is on. Also throws what
/// check_plain_format() throws, for the same arguments.
void check_plain_operand(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside);

/// Throws if two operands of the operator `name` are on different meshes.
void check_same_mesh(
    std::string_view name,
    const Spec& first,
    const Spec& other);

/// Returns true if a plain tensor may become a term of a sum over ranks: in an
/// implicit_replication() scope, and in a gradient formula.
bool may_split_plain();

/// Throws for a plain tensor that `decision` redistributes to Partial: rank 0
/// would keep its value, and the values of other ranks would be lost. A number
/// that the program passes as a Scalar may become Partial.
void check_plain_is_not_split(
    const OpInfo& info,
    const OpCall& call,
    const Decision& decision);

/// For an operator with OpTraits::accepts_plain_source whose distributed
/// arguments are all replicated: turns the plain tensors that would be refused
/// into DTensors, after the ranks of the mesh have compared these tensors.
/// Throws ValueError if the tensors differ. Leaves the tensors to
/// check_plain_operand() if one of them requires a gradient, or if a gradient
/// formula makes the call. Also compares numbers that are written to a sum over
/// ranks.
void distribute_equal_plain(const OpInfo& info, c10::IValue* args);

} // namespace dtensor::detail
