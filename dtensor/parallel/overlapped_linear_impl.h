// SPDX-License-Identifier: BSD-3-Clause
// A linear whose weight is cut along the input features, computed in chunks of
// rows: while a rank multiplies one chunk, its peers may already reduce the one
// before.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

namespace dtensor::detail {

/// `input` (..., K) S(-1) times `weight_t` (K, N) S(0), plus `bias` (N) R if it
/// is defined: a DTensor (..., N) in layout `output`, reduced in `chunks`
/// chunks of the first dimension. Undefined, and nothing done, where it cannot
/// be done so: other layouts or dtypes, fewer than two rows, an output that is
/// sharded along the rows. Differentiable; the gradient is not chunked.
at::Tensor overlapped_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const Placement& output,
    int64_t chunks);

} // namespace dtensor::detail
