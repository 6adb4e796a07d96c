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

} // namespace dtensor::detail
