// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/dim_map.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace dtensor {
namespace {

// Position of a dimension, or of each block of a StridedShard, in row-major
// order: `outer` rows of `size` elements, each `inner` wide. Sharding the
// dimension at multiples of `unit` gives a rank the same range of each row.
struct Rows {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;
  int64_t unit = 1;
  friend bool operator==(const Rows&, const Rows&) = default;
};

Rows rows_of(SizesRef sizes, int64_t dim) {
  const auto d = static_cast<size_t>(dim);
  return {numel(sizes.slice(0, d)), sizes[d], numel(sizes.slice(d + 1))};
}

// Returns the rows that `sharding` shards. Empty if the blocks of a
// StridedShard differ in length, because the range in the last block then
// differs from the other ranges.
std::optional<Rows> sharded_rows(SizesRef sizes, const Placement& sharding) {
  auto rows = rows_of(sizes, sharding.dim());
  rows.unit = sharding.unit();
  if (sharding.is_strided_shard()) {
    if (rows.size % sharding.split_factor() != 0) {
      return std::nullopt;
    }
    rows.outer *= sharding.split_factor();
    rows.size /= sharding.split_factor();
  }
  return rows;
}

// Returns true if rank `index` of `parts` gets the same elements in the same
// order.
bool same_part(const Rows& a, const Rows& b, int64_t parts, int64_t index) {
  const auto in_a = chunk(a.size, parts, index, a.unit);
  const auto in_b = chunk(b.size, parts, index, b.unit);
  const bool none = in_a.size() == 0;
  const bool all = in_a.size() == a.size;
  if (none || all) {
    return none ? in_b.size() == 0 : in_b.size() == b.size;
  }
  // Each row contributes one interval, and no two intervals are adjacent. The
  // shards are therefore equal if the number of rows and the bounds of the
  // intervals are equal.
  return a.outer == b.outer && in_a.begin * a.inner == in_b.begin * b.inner &&
      in_a.end * a.inner == in_b.end * b.inner;
}

// Local shapes of a rank between two mesh dimensions. `from` and `to` hold the
// same elements in the same order, so the effect of the next placement depends
// only on these shapes.
struct LocalShapes {
  Sizes from;
  Sizes to;
  friend bool operator==(const LocalShapes&, const LocalShapes&) = default;
};

bool shards_alike(
    const LocalShapes& local,
    const Placement& from,
    const Placement& to,
    int64_t parts) {
  if (parts == 1 || numel(local.from) == 0) {
    return true;
  }
  if (rows_of(local.from, from.dim()) == rows_of(local.to, to.dim()) &&
      from.with_dim(0) == to.with_dim(0)) {
    return true;
  }
  const auto a = sharded_rows(local.from, from);
  const auto b = sharded_rows(local.to, to);
  if (!a || !b) {
    return false;
  }
  for (int64_t index = 0; index < parts; ++index) {
    if (!same_part(*a, *b, parts, index)) {
      return false;
    }
  }
  return true;
}

Sizes sharded_sizes(
    Sizes sizes,
    const Placement& placement,
    int64_t parts,
    int64_t index) {
  auto& size = sizes[static_cast<size_t>(placement.dim())];
  if (size == 0) {
    return sizes;
  }
  if (const auto rows = sharded_rows(sizes, placement)) {
    size =
        size / rows->size * chunk(rows->size, parts, index, rows->unit).size();
    return sizes;
  }
  size = total_size(shard_intervals({{0, size}}, placement, parts, index));
  return sizes;
}

// Returns the candidate units for sharding a dimension with elements of size
// `inner` along these rows: no unit, the unit of the rows, and the first rank's
// shard as the unit.
c10::SmallVector<int64_t, 3>
units_in(int64_t inner, const Rows& rows, int64_t parts) {
  c10::SmallVector<int64_t, 3> units{1};
  const auto part = chunk(rows.size, parts, 0, rows.unit).size();
  for (const auto unit : {rows.unit * rows.inner, part * rows.inner}) {
    if (inner > 0 && unit > 0 && unit % inner == 0) {
      units.push_back(unit / inner);
    }
  }
  return units;
}

// Returns the placements on dimension d that may shard it along the rows
// `sharding`: Shard if d has the same number of rows, StridedShard if each row
// of d holds several rows of `sharding`.
Placements
shardings_of(const Rows& rows, const Rows& sharding, int64_t d, int64_t parts) {
  const auto pieces = rows.outer > 0 ? sharding.outer / rows.outer : 0;
  if (pieces * rows.outer != sharding.outer) {
    return {};
  }
  Placements names;
  for (const auto unit : units_in(rows.inner, sharding, parts)) {
    names.push_back(
        pieces > 1 ? StridedShard(d, pieces, unit) : Shard(d, unit));
  }
  return names;
}

// Returns the candidates for the placement of `from` in the sizes `to`, the
// most likely first: the same placement on a dimension with the same rows, then
// Shard and StridedShard along these rows, then Shard on any dimension. The
// last candidate is correct on ranks that hold all elements or none.
Placements
names_in(const LocalShapes& local, const Placement& from, int64_t parts) {
  Placements names;
  const auto own = rows_of(local.from, from.dim());
  const auto sharding = sharded_rows(local.from, from);
  const auto ndim = static_cast<int64_t>(local.to.size());
  const auto add = [&](const Placement& name) {
    if (std::ranges::find(names, name) == names.end()) {
      names.push_back(name);
    }
  };
  for (int64_t d = 0; d < ndim; ++d) {
    if (rows_of(local.to, d) == own) {
      add(from.with_dim(d));
    }
  }
  Placements in_pieces;
  for (int64_t d = 0; d < ndim && sharding; ++d) {
    for (const auto& name :
         shardings_of(rows_of(local.to, d), *sharding, d, parts)) {
      if (name.is_strided_shard()) {
        in_pieces.push_back(name);
      } else {
        add(name);
      }
    }
  }
  std::ranges::for_each(in_pieces, add);
  for (int64_t d = 0; d < ndim; ++d) {
    add(Shard(d));
    add(Shard(d, std::max<int64_t>(rows_of(local.to, d).size, 1)));
  }
  return names;
}

using ShapeSet = std::vector<LocalShapes>;

std::optional<Placement>
kept_sharding(const ShapeSet& shapes, const Placement& from, int64_t parts) {
  for (const auto& name : names_in(shapes.front(), from, parts)) {
    if (std::ranges::all_of(shapes, [&](const auto& local) {
          return shards_alike(local, from, name, parts);
        })) {
      return name;
    }
  }
  return std::nullopt;
}

// Returns the distinct local shapes after sharding. Their number is small for
// any number of ranks.
ShapeSet shard_all(
    const ShapeSet& shapes,
    const Placement& from,
    const Placement& to,
    int64_t parts) {
  ShapeSet after;
  for (const auto& local : shapes) {
    for (int64_t index = 0; index < parts; ++index) {
      LocalShapes part{
          sharded_sizes(local.from, from, parts, index),
          sharded_sizes(local.to, to, parts, index)};
      if (std::ranges::find(after, part) == after.end()) {
        after.push_back(std::move(part));
      }
    }
  }
  return after;
}

} // namespace

// Decides one mesh dimension after the other. Each candidate is tested on every
// distinct pair of local shapes that the earlier mesh dimensions leave. Ranks
// with equal local shapes shard them equally, so few pairs represent all ranks.
ViewLayout view_layout(
    SizesRef from,
    SizesRef to,
    SizesRef mesh_shape,
    PlacementsRef placements) {
  ViewLayout layout;
  ShapeSet shapes{
      {Sizes(from.begin(), from.end()), Sizes(to.begin(), to.end())}};
  for (size_t m = 0; m < placements.size(); ++m) {
    const auto& placement = placements[m];
    if (!placement.is_sharded()) {
      layout.inputs.push_back(placement);
      layout.outputs.push_back(placement);
      continue;
    }
    const auto kept = kept_sharding(shapes, placement, mesh_shape[m]);
    if (kept) {
      shapes = shard_all(shapes, placement, *kept, mesh_shape[m]);
    } else if (layout.lost_mesh_dim < 0 && mesh_shape[m] > 1) {
      layout.lost_mesh_dim = static_cast<int64_t>(m);
    }
    // A mesh dimension of one rank has all elements, so the input needs no
    // change.
    const bool keeps_input = kept || mesh_shape[m] == 1;
    layout.inputs.push_back(keeps_input ? placement : Replicate());
    layout.outputs.push_back(kept.value_or(Replicate()));
  }
  return layout;
}

DimMap identity_map(int64_t ndim) {
  DimMap map(static_cast<size_t>(ndim));
  std::iota(map.begin(), map.end(), 0);
  return map;
}

Strategies
move_strategies(const OpCall& call, int64_t mesh_dim, const DimMap& map) {
  Strategies strategies;
  const auto add = [&](const Placement& in, const Placement& out) {
    strategies.push_back({Placements(call.outputs.size(), out), {in}});
  };
  for (size_t d = 0; d < map.size(); ++d) {
    if (map[d] >= 0) {
      add(Shard(static_cast<int64_t>(d)), Shard(map[d]));
    }
  }
  const auto& now = call.inputs[0].placement(mesh_dim);
  if (now.is_partial()) {
    add(now, now);
  }
  return strategies;
}

Strategies linear_move_strategies(
    const OpCall& call,
    int64_t mesh_dim,
    const DimMap& map) {
  auto strategies = move_strategies(call, mesh_dim, map);
  const auto& now = call.inputs[0].placement(mesh_dim);
  if (now.is_partial() && !now.is_partial(ReduceOp::kSum) &&
      !now.is_partial(ReduceOp::kAvg)) {
    strategies.pop_back();
  }
  return strategies;
}

std::vector<OutputMeta> like_first_input(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const Sizes sizes(self.sizes().begin(), self.sizes().end());
  return {{sizes, dense_strides(sizes, self.strides()), self.dtype()}};
}

} // namespace dtensor
