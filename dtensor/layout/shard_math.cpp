// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <numeric>

#include <c10/util/Exception.h>

namespace dtensor {
namespace {

int64_t total_size(const Intervals& intervals) {
  int64_t size = 0;
  for (const Interval& interval : intervals) {
    size += interval.size();
  }
  return size;
}

void append(Intervals& list, Interval interval) {
  if (interval.size() == 0) {
    return;
  }
  if (!list.empty() && list.back().end == interval.begin) {
    list.back().end = interval.end;
  } else {
    list.push_back(interval);
  }
}

// Appends the positions `range` of the concatenated `held`:
// held {[0, 2), [6, 9)}, range [1, 4) -> {[1, 2), [6, 8)}
void append_range(Intervals& list, const Intervals& held, Interval range) {
  int64_t position = 0;
  for (const Interval& interval : held) {
    const int64_t begin = std::max(range.begin, position);
    const int64_t end = std::min(range.end, position + interval.size());
    if (begin < end) {
      const int64_t shift = interval.begin - position;
      append(list, {begin + shift, end + shift});
    }
    position += interval.size();
  }
}

// The placements of the mesh dimensions before `mesh_dim`, left to right.
Intervals intervals_before(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate,
    size_t mesh_dim) {
  Intervals held;
  append(held, {0, size});
  for (size_t i = 0; i < mesh_dim; ++i) {
    if (placements[i].cuts(dim)) {
      held = cut(held, placements[i], mesh_shape[i], coordinate[i]);
    }
  }
  return held;
}

} // namespace

Interval chunk(int64_t size, int64_t parts, int64_t index) {
  TORCH_INTERNAL_ASSERT(
      size >= 0 && 0 <= index && index < parts,
      "chunk(",
      size,
      ", ",
      parts,
      ", ",
      index,
      ")");
  const int64_t step = (size + parts - 1) / parts;
  const int64_t begin = std::min(size, step * index);
  return {begin, std::min(size, begin + step)};
}

Intervals cut(
    const Intervals& held,
    const Placement& placement,
    int64_t parts,
    int64_t index) {
  if (!placement.cuts()) {
    return held;
  }
  const int64_t size = total_size(held);
  Intervals kept;
  if (placement.is_shard()) {
    append_range(kept, held, chunk(size, parts, index));
    return kept;
  }
  const int64_t pieces = placement.split_factor();
  for (int64_t i = 0; i < pieces; ++i) {
    const Interval piece = chunk(size, pieces, i);
    if (piece.size() == 0) {
      break; // and so are all that follow
    }
    const Interval part = chunk(piece.size(), parts, index);
    append_range(
        kept, held, {piece.begin + part.begin, piece.begin + part.end});
  }
  return kept;
}

Intervals local_intervals(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate) {
  return intervals_before(
      size, dim, mesh_shape, placements, coordinate, placements.size());
}

Sizes local_sizes(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate) {
  Sizes sizes;
  for (size_t d = 0; d < global_sizes.size(); ++d) {
    sizes.push_back(total_size(local_intervals(
        global_sizes[d],
        static_cast<int64_t>(d),
        mesh_shape,
        placements,
        coordinate)));
  }
  return sizes;
}

Sizes global_offset(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate) {
  Sizes offset;
  for (size_t d = 0; d < global_sizes.size(); ++d) {
    const Intervals held = local_intervals(
        global_sizes[d],
        static_cast<int64_t>(d),
        mesh_shape,
        placements,
        coordinate);
    offset.push_back(held.empty() ? global_sizes[d] : held.front().begin);
  }
  return offset;
}

int64_t logical_size(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate,
    int64_t mesh_dim) {
  return total_size(intervals_before(
      size,
      dim,
      mesh_shape,
      placements,
      coordinate,
      static_cast<size_t>(mesh_dim)));
}

Sizes contiguous_strides(SizesRef sizes) {
  Sizes strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

Sizes dense_strides(SizesRef sizes, SizesRef like_strides) {
  TORCH_INTERNAL_ASSERT(sizes.size() == like_strides.size());
  c10::SmallVector<size_t, 5> outer_to_inner(sizes.size());
  std::iota(outer_to_inner.begin(), outer_to_inner.end(), size_t{0});
  std::stable_sort(
      outer_to_inner.begin(), outer_to_inner.end(), [&](size_t a, size_t b) {
        return like_strides[a] > like_strides[b];
      });
  Sizes strides(sizes.size(), 1);
  int64_t step = 1;
  for (auto d = outer_to_inner.rbegin(); d != outer_to_inner.rend(); ++d) {
    strides[*d] = step;
    step *= std::max<int64_t>(sizes[*d], 1);
  }
  return strides;
}

int64_t numel(SizesRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    product *= size;
  }
  return product;
}

} // namespace dtensor
