// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/shard_math.h>

#include <dtensor/layout/intervals_impl.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

namespace dtensor {
namespace {

// Appends the elements at positions `range` of the concatenation of `held`:
// held {[0, 2), [6, 9)}, range [1, 4) -> {[1, 2), [6, 8)}
void append_range(Intervals& list, const Intervals& held, Interval range) {
  int64_t position = 0;
  for (const Interval& interval : held) {
    const Interval positions{position, position + interval.size()};
    detail::append_joined(
        list,
        detail::shifted(
            detail::overlap(range, positions), interval.begin - position));
    position = positions.end;
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Returns the number of elements in every chunk except the last ones.
int64_t chunk_step(int64_t size, int64_t parts, int64_t unit) {
  if (unit == 1) {
    return ceil_div(size, parts);
  }
  const int64_t one = std::min(unit, std::max<int64_t>(size, 1));
  return ceil_div(ceil_div(size, one), parts) * one;
}

// Returns the intervals of `dim` after the placements of the mesh dimensions
// before `mesh_dim` are applied, left to right.
Intervals intervals_before(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate,
    size_t mesh_dim) {
  Intervals held;
  detail::append_joined(held, {0, size});
  for (size_t i = 0; i < mesh_dim; ++i) {
    if (placements[i].is_sharded(dim)) {
      held = shard_intervals(held, placements[i], mesh_shape[i], coordinate[i]);
    }
  }
  return held;
}

using SizeSet = std::set<int64_t>;

// Returns the sizes of the blocks that `sharding` splits dimensions of
// these sizes into.
SizeSet piece_sizes(const SizeSet& sizes, const Placement& sharding) {
  SizeSet pieces;
  for (const int64_t size : sizes) {
    const Interval first = chunk(size, sharding.split_factor(), 0);
    pieces.insert(first.size());
    if (first.size() > 0) {
      pieces.insert(size % first.size());
    }
  }
  return pieces;
}

// Returns all sizes that local shards of a tensor dimension have after the
// placements.
SizeSet sizes_found(
    int64_t size,
    int64_t dim,
    SizesRef mesh_shape,
    PlacementsRef placements) {
  SizeSet sizes{size};
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_sharded(dim)) {
      continue;
    }
    SizeSet parts;
    for (const int64_t parent : sizes) {
      for (int64_t index = 0; index < mesh_shape[m]; ++index) {
        parts.insert(total_size(shard_intervals(
            {{0, parent}}, placements[m], mesh_shape[m], index)));
      }
    }
    sizes = std::move(parts);
  }
  return sizes;
}

bool makes_same_shards(
    const SizeSet& sizes,
    int64_t parts,
    int64_t unit,
    int64_t other) {
  return std::ranges::all_of(sizes, [&](int64_t size) {
    const auto step = [&](int64_t u) {
      return std::min(size, chunk_step(size, parts, u));
    };
    return step(unit) == step(other);
  });
}

// Finds the largest unit that yields the same shards. If all blocks have one
// size, the unit is a common divisor of that size and the chunk step, or the
// step itself. With several sizes, no larger unit is searched.
int64_t
largest_unit(const SizeSet& found, const Placement& sharding, int64_t parts) {
  SizeSet sizes = piece_sizes(found, sharding);
  sizes.erase(0);
  const int64_t unit = sharding.unit();
  if (makes_same_shards(sizes, parts, unit, 1)) {
    return 1;
  }
  if (sizes.size() > 1) {
    return unit;
  }
  const int64_t size = *sizes.begin();
  const int64_t step = chunk_step(size, parts, unit);
  const int64_t divisor = std::gcd(size, step);
  return makes_same_shards(sizes, parts, unit, divisor) ? divisor : step;
}

} // namespace

int64_t total_size(const Intervals& intervals) {
  int64_t size = 0;
  for (const Interval& interval : intervals) {
    size += interval.size();
  }
  return size;
}

Interval chunk(int64_t size, int64_t parts, int64_t index, int64_t unit) {
  TORCH_INTERNAL_ASSERT(
      size >= 0 && 0 <= index && index < parts && unit >= 1,
      "chunk(",
      size,
      ", ",
      parts,
      ", ",
      index,
      ", ",
      unit,
      ")");
  const int64_t step = chunk_step(size, parts, unit);
  const int64_t begin = std::min(size, step * index);
  return {begin, std::min(size, begin + step)};
}

Intervals shard_intervals(
    const Intervals& held,
    const Placement& placement,
    int64_t parts,
    int64_t index) {
  if (!placement.is_sharded()) {
    return held;
  }
  const int64_t size = total_size(held);
  Intervals kept;
  if (placement.is_shard()) {
    append_range(kept, held, chunk(size, parts, index, placement.unit()));
    return kept;
  }
  const int64_t pieces = placement.split_factor();
  for (int64_t i = 0; i < pieces; ++i) {
    const Interval piece = chunk(size, pieces, i);
    if (piece.size() == 0) {
      break; // all following blocks are empty too
    }
    const Interval part = chunk(piece.size(), parts, index, placement.unit());
    append_range(
        kept, held, {piece.begin + part.begin, piece.begin + part.end});
  }
  return kept;
}

Placements with_largest_units(
    SizesRef global_sizes,
    SizesRef mesh_shape,
    Placements placements) {
  for (size_t m = 0; m < placements.size(); ++m) {
    Placement& sharding = placements[m];
    if (sharding.is_sharded() && sharding.unit() != 1) {
      const auto found = sizes_found(
          global_sizes[static_cast<size_t>(sharding.dim())],
          sharding.dim(),
          mesh_shape,
          PlacementsRef(placements).slice(0, m));
      sharding =
          sharding.with_unit(largest_unit(found, sharding, mesh_shape[m]));
    }
  }
  return placements;
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

int64_t size_before_mesh_dim(
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
  // This is LibTorch's order for results, in which a stride of 0 is not
  // compared with any other stride.
  c10::SmallVector<size_t, 5> inner_to_outer(sizes.size());
  std::iota(inner_to_outer.rbegin(), inner_to_outer.rend(), size_t{0});
  for (size_t i = 1; i < inner_to_outer.size(); ++i) {
    size_t place = i;
    for (size_t other = i; other-- > 0;) {
      const auto outer = like_strides[inner_to_outer[place]];
      const auto inner = like_strides[inner_to_outer[other]];
      if (outer == 0 || inner == 0 || outer == inner) {
        continue;
      }
      if (inner < outer) {
        break;
      }
      std::swap(inner_to_outer[place], inner_to_outer[other]);
      place = other;
    }
  }
  Sizes strides(sizes.size(), 1);
  int64_t step = 1;
  for (const size_t d : inner_to_outer) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

int64_t numel(SizesRef sizes) {
  return c10::multiply_integers(sizes);
}

} // namespace dtensor
