// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/mesh_state_impl.h>

#include <dtensor/error.h>

namespace dtensor {
namespace {

using detail::FlattenedMesh;
using detail::join_names;
using detail::MeshGroups;
using detail::MeshState;

// Throws IndexError for a name that is neither a dimension nor flattened.
void check_names(
    const MeshState& state,
    const std::vector<std::string>& names) {
  std::vector<std::string> known = state.names;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    for (const FlattenedMesh& flattened : state.flattened) {
      known.push_back(flattened.name);
    }
  }
  for (const std::string& name : names) {
    DTENSOR_CHECK_INDEX(
        std::ranges::find(known, name) != known.end(),
        "[DeviceMesh] no dimension is called \"{}\": the names are {}. Use one "
        "of them.",
        name,
        join_names(known));
  }
}

using Point = std::vector<int64_t>;

// One dimension of a slice: the ranks along it, including this rank.
struct SliceDim {
  std::vector<Point> points; // coordinates of the ranks in the sliced mesh
  std::vector<int64_t> dims; // dimensions in which the points differ, ascending
  std::shared_ptr<MeshGroups> groups;
};

SliceDim slice_dim_of(
    const DeviceMesh& mesh,
    const std::vector<int64_t>& ranks,
    std::shared_ptr<MeshGroups> groups) {
  SliceDim result{{}, {}, std::move(groups)};
  const auto& all = mesh.ranks();
  for (const int64_t rank : ranks) {
    const auto found = std::ranges::find(all, rank);
    TORCH_INTERNAL_ASSERT(found != all.end());
    result.points.push_back(mesh.coordinate_of(found - all.begin()));
  }
  for (size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    const bool differs =
        std::ranges::any_of(result.points, [&](const Point& point) {
          return point[dim] != result.points[0][dim];
        });
    if (differs) {
      result.dims.push_back(static_cast<int64_t>(dim));
    }
  }
  return result;
}

// "dp, cp_tp (cp, tp)"
std::string explain_names(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names,
    const std::vector<SliceDim>& slice) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<std::string> joined;
    for (const int64_t dim : slice[i].dims) {
      joined.push_back(mesh.mesh_dim_names()[static_cast<size_t>(dim)]);
    }
    const bool is_plain = joined.size() == 1 && joined[0] == names[i];
    texts.push_back(
        is_plain || joined.empty()
            ? names[i]
            : detail::format_text("{} ({})", names[i], join_names(joined)));
  }
  return join_names(texts);
}

void check_order(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names,
    const std::vector<SliceDim>& slice) {
  int64_t last = -1;
  for (const SliceDim& item : slice) {
    DTENSOR_CHECK_VALUE(
        item.dims.empty() || item.dims.front() > last,
        "[DeviceMesh] a slice must keep the order of the mesh dimensions: {} "
        "of {}. Name each dimension once, in that order.",
        explain_names(mesh, names, slice),
        join_names(mesh.mesh_dim_names()));
    last = item.dims.empty() ? last : item.dims.back();
  }
}

// Ranks of the slice: their coordinates differ from this rank's only along the
// dimensions of the slice.
std::vector<int64_t> ranks_along(
    const DeviceMesh& mesh,
    const std::vector<SliceDim>& slice,
    const Point& through) {
  std::vector<Point> points = {through};
  for (const SliceDim& item : slice) {
    std::vector<Point> next;
    for (const Point& start : points) {
      for (const Point& step : item.points) {
        next.push_back(start);
        for (const int64_t dim : item.dims) {
          const auto d = static_cast<size_t>(dim);
          next.back()[d] = step[d];
        }
      }
    }
    points = std::move(next);
  }
  std::vector<int64_t> ranks;
  for (const Point& point : points) {
    int64_t index = 0;
    for (size_t dim = 0; dim < point.size(); ++dim) {
      index = index * mesh.shape()[dim] + point[dim];
    }
    ranks.push_back(mesh.ranks()[static_cast<size_t>(index)]);
  }
  return ranks;
}

} // namespace

std::vector<int64_t> detail::point_of(const DeviceMesh& mesh) {
  return mesh.get_coordinate().value_or(
      std::vector<int64_t>(static_cast<size_t>(mesh.ndim()), 0));
}

std::optional<FlattenedMesh> detail::find_flattened(
    const MeshState& state,
    std::string_view name) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto found =
      std::ranges::find(state.flattened, name, &FlattenedMesh::name);
  return found == state.flattened.end() ? std::nullopt : std::optional(*found);
}

void detail::remember_flattened(
    const MeshState& state,
    const FlattenedMesh& mesh) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  auto& known = state.flattened;
  if (std::ranges::find(known, mesh.name, &FlattenedMesh::name) ==
      known.end()) {
    known.push_back(mesh);
  }
}

DeviceMesh detail::slice_with_flattened(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names) {
  check_names(MeshAccess::state(mesh), names);
  std::vector<SliceDim> dims;
  std::vector<int64_t> sizes;
  std::shared_ptr<MeshGroups> groups;
  for (const std::string& name : names) {
    const auto joined = find_flattened(MeshAccess::state(mesh), name);
    const auto& part = dims.emplace_back(slice_dim_of(
        mesh,
        joined ? joined->ranks : mesh[name].ranks(),
        joined ? joined->groups : mesh_groups(mesh[name])));
    sizes.push_back(static_cast<int64_t>(part.points.size()));
    groups = groups ? groups->joined_with(*part.groups) : part.groups;
  }
  check_order(mesh, names, dims);
  return MeshAccess::mesh(make_state(
      {mesh.device_type(),
       std::move(sizes),
       ranks_along(mesh, dims, point_of(mesh)),
       names,
       mesh.get_rank(),
       std::move(groups)}));
}

} // namespace dtensor
