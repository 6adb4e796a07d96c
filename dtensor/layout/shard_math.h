// SPDX-License-Identifier: BSD-3-Clause
// Which global elements a rank holds: pure arithmetic on sizes, placements and
// coordinates, with no tensor in sight.
//
// Placements apply from left to right. Everything here follows from one fact:
// the elements of a tensor dimension that a rank holds are an ordered list of
// intervals of global indices, and each placement that cuts the dimension
// keeps a part of that list.
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
  int64_t size() const {
    return end - begin;
  }
  friend bool operator==(const Interval&, const Interval&) = default;
};
/// In the order of the local tensor.
using Intervals = c10::SmallVector<Interval, 2>;

/// How many indices they hold.
DTENSOR_API int64_t total_size(const Intervals& intervals);

/// The part of [0, size) that torch.chunk(parts) gives to `index`:
/// ceil(size / parts) elements each, trailing parts shorter or empty.
///
///   chunk(5, 3, 0) == [0, 2)
///   chunk(5, 3, 2) == [4, 5)
///   chunk(2, 4, 3) == [2, 2)
///
/// With a unit, of ceil(size / unit) units, the last of which may be shorter:
///
///   chunk(9, 2, 0, 2) == [0, 6)
///   chunk(9, 2, 1, 2) == [6, 9)
DTENSOR_API Interval
chunk(int64_t size, int64_t parts, int64_t index, int64_t unit = 1);

/// The part of an ordered list of intervals that `placement`, over `parts`
/// ranks, gives to rank `index`. Adjacent intervals are joined.
DTENSOR_API Intervals
cut(const Intervals& held,
    const Placement& placement,
    int64_t parts,
    int64_t index);

/// `placements` with, of each cut that has a unit, the largest one that makes
/// the same parts of a tensor of `global_sizes` on every rank; none where the
/// cut without a unit makes them.
DTENSOR_API Placements with_largest_units(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    Placements placements);

/// The global indices of tensor dimension `dim`, of `size` elements, that the
/// rank at `coordinate` holds, in the order of its local tensor.
DTENSOR_API Intervals local_intervals(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate);

/// The shape of the local tensor at `coordinate`.
DTENSOR_API Sizes local_sizes(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate);

/// The global index of the first element of the local tensor at `coordinate`
/// in every dimension; global size where the local tensor is empty.
/// Python: compute_local_shape_and_global_offset.
DTENSOR_API Sizes global_offset(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate);

/// The size of dimension `dim` on the way: after the placements of the mesh
/// dimensions before `mesh_dim` were applied, at `coordinate`.
DTENSOR_API int64_t logical_size(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate,
    int64_t mesh_dim);

/// Row-major strides.
DTENSOR_API Sizes contiguous_strides(SizesRef sizes);

/// Strides of a dense tensor of `sizes` whose dimensions are ordered in memory
/// as those of `like_strides` are (ties: as in row-major order).
DTENSOR_API Sizes dense_strides(SizesRef sizes, SizesRef like_strides);

/// Product of sizes.
DTENSOR_API int64_t numel(SizesRef sizes);

} // namespace dtensor
