// SPDX-License-Identifier: BSD-3-Clause
// Functions that compute which global elements a rank holds, from sizes,
// placements and mesh coordinates. The functions need no tensor.
//
// Placements apply from left to right. A rank's elements along a tensor
// dimension are an ordered list of intervals of global indices. Each placement
// that shards the dimension keeps a sublist of them.
#pragma once

#include <c10/util/SmallVector.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

namespace dtensor {

/// Sizes or strides of a tensor, one for each dimension.
using Sizes = c10::SmallVector<int64_t, 5>;
using SizesRef = c10::ArrayRef<int64_t>;

/// The half-open range [begin, end) of indices.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  /// Returns the number of indices.
  int64_t size() const {
    return end - begin;
  }
  friend bool operator==(const Interval&, const Interval&) = default;
};
/// Intervals in the order of the local tensor.
using Intervals = c10::SmallVector<Interval, 2>;

/// Returns the total number of indices in the intervals.
DTENSOR_API int64_t total_size(const Intervals& intervals);

/// Returns the chunk of [0, size) that torch.chunk(parts) gives to `index`:
/// ceil(size / parts) elements each, trailing chunks shorter or empty.
///
///   chunk(5, 3, 0) == [0, 2)
///   chunk(5, 3, 2) == [4, 5)
///   chunk(2, 4, 3) == [2, 2)
///
/// With a unit, torch.chunk distributes ceil(size / unit) units, the last of
/// them possibly shorter:
///
///   chunk(9, 2, 0, 2) == [0, 6)
///   chunk(9, 2, 1, 2) == [6, 9)
DTENSOR_API Interval
chunk(int64_t size, int64_t parts, int64_t index, int64_t unit = 1);

/// Shards `held`, an ordered list of intervals, by `placement`, and returns the
/// shard of rank `index` of `parts` ranks. Adjacent intervals are joined.
DTENSOR_API Intervals shard_intervals(
    const Intervals& held,
    const Placement& placement,
    int64_t parts,
    int64_t index);

/// Canonicalizes units: replaces each shard's unit by the largest unit that
/// yields the same shards of a tensor of `global_sizes` on every rank. Removes
/// a unit that has no effect.
DTENSOR_API Placements with_largest_units(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    Placements placements);

/// Returns the global indices of tensor dimension `dim`, of `size` elements,
/// that the rank at `coordinate` holds, in the order of its local tensor.
DTENSOR_API Intervals local_intervals(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate);

/// Returns the shape of the local tensor at `coordinate`.
DTENSOR_API Sizes local_sizes(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate);

/// Returns, for each dimension, the global index of the first element of the
/// local tensor at `coordinate`. The index is the global size if the local
/// tensor is empty along the dimension.
/// Python: compute_local_shape_and_global_offset.
DTENSOR_API Sizes global_offset(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate);

/// Returns the size of dimension `dim` at `coordinate` after only the
/// placements of the mesh dimensions before `mesh_dim` are applied.
DTENSOR_API int64_t size_before_mesh_dim(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate,
    int64_t mesh_dim);

/// Returns the strides of a row-major tensor.
DTENSOR_API Sizes contiguous_strides(SizesRef sizes);

/// Returns the strides of a dense tensor of `sizes` whose dimensions have the
/// memory order of `like_strides`. Dimensions of equal stride are in row-major
/// order.
DTENSOR_API Sizes dense_strides(SizesRef sizes, SizesRef like_strides);

/// Returns the product of the sizes.
DTENSOR_API int64_t numel(SizesRef sizes);

} // namespace dtensor
