// SPDX-License-Identifier: BSD-3-Clause
// Slices of local tensors, which steps of a plan send and receive.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/layout/intervals_impl.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

/// Intervals of each tensor dimension. A box is their product.
using IndexBox = c10::SmallVector<Intervals, 5>;

/// A part of a local tensor: the product of the offsets of each dimension.
struct LocalSlice {
  IndexBox offsets;
  Sizes sizes;
};

/// Returns the offsets of `wanted` in a local tensor that holds `held`, in the
/// order of `wanted`.
Intervals offsets_in(const Intervals& held, const Intervals& wanted);

/// Returns the slice with the elements of `wanted` in a local tensor that holds
/// `held`, in the order of `wanted`.
LocalSlice slice_of(const IndexBox& held, const IndexBox& wanted);

/// Returns the elements of `t` in `intervals` of dimension `dim`, in order; a
/// view unless there are several intervals.
at::Tensor
select_intervals(const at::Tensor& t, int64_t dim, const Intervals& intervals);

/// Returns the elements of `slice`; a view where possible.
at::Tensor read_slice(at::Tensor local, const LocalSlice& slice);

/// Copies `part`, which has the sizes of `slice`, to this slice of `local`.
void write_slice(
    const at::Tensor& local,
    const LocalSlice& slice,
    const at::Tensor& part);

} // namespace dtensor::detail
