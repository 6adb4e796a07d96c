// SPDX-License-Identifier: BSD-3-Clause
// Sets of mesh dimensions that one collective may be over, and their costs.
#include <dtensor/redistribute/plan_impl.h>

#include <dtensor/comm/group/mesh_groups_impl.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace dtensor::detail {

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
