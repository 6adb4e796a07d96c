// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of reductions: combining tensors in order.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/placement.h>

namespace dtensor::detail {

/// out = inputs[0] op inputs[1] op ..., combined from left to right. All have
/// the shape of `out`, which does not overlap an input. Sums, averages and
/// products of half types accumulate in float32 and round once.
void reduce_into(
    const at::Tensor& out,
    c10::ArrayRef<at::Tensor> inputs,
    ReduceOp op);

/// Whether reduce_loop is the way for `bytes` of each input, not reduce_into.
bool wants_loop(at::ScalarType dtype, ReduceOp op, int64_t bytes);

/// The same of `count` elements in memory, of at least two inputs: in a loop
/// where that is faster.
void reduce_memory(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count);

} // namespace dtensor::detail
