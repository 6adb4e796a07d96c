// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of reductions: which dtypes an operation takes, and combining
// tensors in order.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/placement.h>

#include <string_view>

namespace dtensor::detail {

/// Throws TypeError if `op` has no meaning for `dtype`. Booleans follow NCCL:
/// sum is "or", product is "and", avg is an error.
void check_reducible(std::string_view where, at::ScalarType dtype, ReduceOp op);

/// out = inputs[0] op inputs[1] op ..., combined from left to right. All have
/// the shape of `out`, which does not overlap an input. Sums, averages and
/// products of half types accumulate in float32 and round once.
void reduce_into(
    const at::Tensor& out,
    c10::ArrayRef<at::Tensor> inputs,
    ReduceOp op);

} // namespace dtensor::detail
