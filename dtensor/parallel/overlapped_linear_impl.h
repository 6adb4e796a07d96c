// SPDX-License-Identifier: BSD-3-Clause
// Linear with a weight sharded along the input features, computed in chunks of
// rows: the all-reduce of one chunk overlaps with the product of the next.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

namespace dtensor::detail {

/// Returns `input` (..., K) S(-1) times `weight_t` (K, N) S(0), plus `bias` (N)
/// R if defined: a DTensor (..., N) in layout `output`, reduced in `chunks`
/// chunks of the first dimension. Returns an undefined tensor, and does
/// nothing, in unsupported cases: other layouts or dtypes, fewer than two rows,
/// or an output that is sharded along the rows. Differentiable; the gradient is
/// not chunked.
at::Tensor overlapped_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const Placement& output,
    int64_t chunks);

} // namespace dtensor::detail
