// SPDX-License-Identifier: BSD-3-Clause
// The space of a search: the layouts through which a plan may pass, and the
// mesh dimensions that one collective may be over, with their costs.
#include <dtensor/redistribute/plan_impl.h>

#include <dtensor/comm/group/mesh_groups_impl.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr size_t kUsefulDims = 3;
constexpr size_t kMaxLayouts = 1 << 12;

using Dims = c10::SmallVector<int64_t, 8>;

void add_sharded_dims(Dims& dims, PlacementsRef placements) {
  for (const Placement& p : placements) {
    if (p.is_sharded() && std::ranges::find(dims, p.dim()) == dims.end()) {
      dims.push_back(p.dim());
    }
  }
}

// Adds the largest dimensions as intermediate shardings. For example, S(0) S(0)
// -> R S(0) of an odd size passes through S(1) S(0). If shards are uneven,
// sharding a large dimension wastes least.
void add_largest_dims(Dims& dims, SizesRef sizes) {
  while (dims.size() < kUsefulDims) {
    int64_t largest = -1;
    for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
      const int64_t size = sizes[static_cast<size_t>(d)];
      if (size > 1 && std::ranges::find(dims, d) == dims.end() &&
          (largest < 0 || size > sizes[static_cast<size_t>(largest)])) {
        largest = d;
      }
    }
    if (largest < 0) {
      return;
    }
    dims.push_back(largest);
  }
}

template <typename List>
void add_new(List& list, const Placement& p) {
  if (std::ranges::find(list, p) == list.end()) {
    list.push_back(p);
  }
}

// Adds the strided shardings of `dim` that a mesh dimension can apply, or undo,
// after mesh dimensions of the sizes `later` on its right have sharded `dim`.
// These split each block evenly, but the last blocks may be empty.
template <typename List>
void add_strided(
    List& list,
    int64_t dim,
    int64_t size,
    int64_t ranks,
    const Dims& later) {
  for (size_t subset = 1; subset < size_t{1} << later.size(); ++subset) {
    int64_t parts = 1;
    for (size_t i = 0; i < later.size(); ++i) {
      parts *= (subset >> i & 1) != 0 ? later[i] : 1;
    }
    const int64_t block = (size + parts - 1) / parts;
    if (size > 0 && block % ranks == 0 && size % ranks == 0) {
      add_new(list, StridedShard(dim, parts));
    }
  }
}

// Returns the placement that a mesh dimension can enter without communication
// to be reduced together with others, if either layout has such a reduction.
// Other paths avoid reductions, which do not keep the sign of a zero.
std::optional<Placement> shared_reduction(
    PlacementsRef from,
    PlacementsRef to) {
  for (const PlacementsRef layout : {from, to}) {
    for (const Placement& p : layout) {
      if (p.is_partial()) {
        const ReduceOp op =
            is_linear(p.reduce_op()) ? ReduceOp::kSum : p.reduce_op();
        return can_pad(op) ? std::optional(Partial(op)) : std::nullopt;
      }
    }
  }
  return std::nullopt;
}

Options make_options(
    const Frame& frame,
    PlacementsRef from,
    PlacementsRef to,
    const Dims& dims,
    bool with_strided) {
  Options options(from.size());
  const auto reduction = shared_reduction(from, to);
  Dims later; // sizes of the mesh dimensions further right
  for (size_t i = from.size(); i-- > 0;) {
    auto& list = options[i];
    list.push_back(from[i]);
    const int64_t ranks = frame.mesh_shape[i];
    if (ranks == 1) {
      continue;
    }
    add_new(list, to[i]);
    add_new(list, Replicate());
    for (const int64_t d : dims) {
      add_new(list, Shard(d));
      if (with_strided) {
        const int64_t size = frame.sizes[static_cast<size_t>(d)];
        add_strided(list, d, size, ranks, later);
      }
    }
    if (reduction) {
      add_new(list, *reduction);
    }
    later.push_back(ranks);
  }
  return options;
}

size_t count_layouts(const Options& options) {
  size_t count = 1;
  for (const auto& list : options) {
    count *= list.size();
  }
  return count;
}

} // namespace

Options
options_between(const Frame& frame, PlacementsRef from, PlacementsRef to) {
  Dims dims;
  add_sharded_dims(dims, from);
  add_sharded_dims(dims, to);
  Dims more = dims;
  add_largest_dims(more, frame.sizes);
  for (const auto& [chosen, with_strided] :
       {std::pair(more, true),
        std::pair(more, false),
        std::pair(dims, false)}) {
    Options options = make_options(frame, from, to, chosen, with_strided);
    if (count_layouts(options) <= kMaxLayouts) {
      return options;
    }
  }
  return make_options(frame, from, to, {}, false);
}

Links::Links(const DeviceMesh& mesh) {
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    costs_.push_back(link_cost(mesh, i));
    int64_t first = 0;
    while (first != i && !detail::can_join(mesh, first, i)) {
      ++first;
    }
    classes_.push_back(first);
  }
}

Links Links::priced(const LinkCost& cost) const {
  Links links = *this;
  std::ranges::fill(links.costs_, cost);
  return links;
}

Links Links::not_joined() const {
  Links links = *this;
  std::iota(links.classes_.begin(), links.classes_.end(), 0);
  return links;
}

LinkCost Links::over(const MeshDims& mesh_dims) const {
  LinkCost link = costs_[static_cast<size_t>(mesh_dims[0])];
  for (const int64_t dim : mesh_dims) {
    link = slower_of(link, costs_[static_cast<size_t>(dim)]);
  }
  return link;
}

LinkCost Links::fastest(SizesRef mesh_shape) const {
  std::optional<LinkCost> fastest;
  for (size_t i = 0; i < costs_.size(); ++i) {
    if (mesh_shape[i] == 1) {
      continue;
    }
    if (!fastest) {
      fastest = costs_[i];
    }
    fastest->latency_us = std::min(fastest->latency_us, costs_[i].latency_us);
    fastest->gigabytes_per_s =
        std::max(fastest->gigabytes_per_s, costs_[i].gigabytes_per_s);
  }
  return fastest.value_or(LinkCost());
}

bool Links::can_join(const MeshDims& mesh_dims) const {
  const auto first = static_cast<size_t>(mesh_dims[0]);
  return std::ranges::all_of(mesh_dims, [&](int64_t dim) {
    return classes_[static_cast<size_t>(dim)] == classes_[first];
  });
}

MeshDims movable_dims(const Options& options) {
  MeshDims movable;
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i].size() > 1) {
      movable.push_back(static_cast<int64_t>(i));
    }
  }
  return movable;
}

std::vector<DimSet> joinable_sets(
    const SearchSpace& space,
    const MeshDims& movable) {
  std::vector<DimSet> sets;
  const auto add = [&](const MeshDims& dims) {
    if (space.links.can_join(dims)) {
      DimSet& set = sets.emplace_back();
      set.dims = dims;
      set.ranks = ranks_over(space.frame, dims);
      set.link = space.links.over(dims);
      set.latency = picoseconds(set.link, 0);
      for (const int64_t dim : dims) {
        set.mask |= mesh_dim_bit(dim);
      }
    }
  };
  for (const int64_t dim : movable) {
    add({dim});
  }
  if (movable.size() > kMaxJoinedDims) {
    return sets;
  }
  for (size_t subset = 1; subset < size_t{1} << movable.size(); ++subset) {
    MeshDims dims;
    for (size_t i = 0; i < movable.size(); ++i) {
      if ((subset >> i & 1) != 0) {
        dims.push_back(movable[i]);
      }
    }
    if (dims.size() > 1) {
      add(dims);
    }
  }
  return sets;
}

} // namespace dtensor::detail
