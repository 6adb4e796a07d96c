// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of reductions: tensors combined in rank order.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/placement.h>

namespace dtensor::detail {

/// out = inputs[0] op inputs[1] op ..., of at least two inputs, combined from
/// left to right. All inputs have the shape of `out` and do not overlap it.
/// Sums, averages and products of half types accumulate in float32 and round
/// once.
void reduce_into(
    const at::Tensor& out,
    c10::ArrayRef<at::Tensor> inputs,
    ReduceOp op);

/// Returns true if reduce_loop supports this reduction: f32, f64, bf16, i32 and
/// i64, with sum, avg, min and max.
bool has_loop(at::ScalarType dtype, ReduceOp op);

/// Reduces `count` elements of at least two inputs in one pass, combined from
/// left to right. `out` overlaps none of the inputs. The result is bitwise
/// equal to that of reduce_into.
void reduce_loop(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count) noexcept;

/// Returns true if reduce_loop is faster than reduce_into for inputs of
/// `bytes`.
bool prefers_loop(at::ScalarType dtype, ReduceOp op, int64_t bytes);

/// Reduces `count` elements in memory, of at least two inputs, with reduce_loop
/// where that is faster and with reduce_into otherwise.
void reduce_memory(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count);

} // namespace dtensor::detail
