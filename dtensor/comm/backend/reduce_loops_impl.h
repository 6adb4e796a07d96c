// SPDX-License-Identifier: BSD-3-Clause
// Reductions of many arrays in one pass, for the dtypes and operations that
// models use most. Results are bitwise equal to those of reduce_into.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <dtensor/layout/placement.h>

namespace dtensor::detail {

/// Returns true if a loop exists: f32, f64, bf16, i32 and i64 with sum, avg,
/// min, max.
bool has_loop(at::ScalarType dtype, ReduceOp op);

/// out[i] = inputs[0][i] op inputs[1][i] op ..., combined from left to right,
/// for `count` elements. Takes at least two inputs; `out` overlaps none of
/// them.
void reduce_loop(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count) noexcept;

} // namespace dtensor::detail
