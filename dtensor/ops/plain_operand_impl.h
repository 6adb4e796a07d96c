// SPDX-License-Identifier: BSD-3-Clause
// Plain tensors beside DTensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Throws for a plain tensor that need not be the same on every rank: one of
/// several elements, unless implicit_replication is on. It is argument `arg` of
/// the operator, and `beside` the spec of a DTensor among the others.
void check_plain_operand(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside);

} // namespace dtensor::detail
