// SPDX-License-Identifier: BSD-3-Clause
// Concatenation of slices of one mesh.
#include <dtensor/layout/mesh.h>

#include <dtensor/error.h>
#include <dtensor/layout/mesh_slice_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace {

using detail::MeshState;
using detail::StatePtr;

bool has_all(const std::vector<int64_t>& ranks, const DeviceMesh& mesh) {
  return std::ranges::all_of(mesh.ranks(), [&](int64_t rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  });
}

// Returns the largest living mesh that contains the ranks of all meshes.
StatePtr common_origin(
    const std::vector<DeviceMesh>& meshes,
    const std::vector<StatePtr>& states) {
  StatePtr origin;
  for (const StatePtr& state : states) {
    for (const StatePtr& candidate : detail::family(state)) {
      const bool fits = std::ranges::all_of(meshes, [&](const auto& mesh) {
        return has_all(candidate->ranks, mesh);
      });
      if (fits &&
          (origin == nullptr ||
           candidate->ranks.size() > origin->ranks.size())) {
        origin = candidate;
      }
    }
  }
  DTENSOR_CHECK_VALUE(
      origin != nullptr,
      "[DeviceMesh::concatenate] the meshes are not slices of one mesh that "
      "still exists. Slice them from one mesh, and keep that mesh alive.");
  return origin;
}

// Enumerates the ranks of the concatenated mesh. A rank's position in the
// origin is a sum: one offset along each of the meshes.
std::vector<int64_t> ranks_side_by_side(
    const std::vector<DeviceMesh>& meshes,
    const MeshState& origin) {
  const auto place_of = [&](int64_t rank) {
    const auto& ranks = origin.ranks;
    return std::ranges::find(ranks, rank) - ranks.begin();
  };
  const auto through =
      origin.coordinate ? place_of(origin.rank) : std::ptrdiff_t{0};
  std::vector<int64_t> places = {through};
  for (const DeviceMesh& mesh : meshes) {
    std::vector<int64_t> next;
    for (const int64_t place : places) {
      for (const int64_t rank : mesh.ranks()) {
        next.push_back(place + place_of(rank) - through);
      }
    }
    places = std::move(next);
  }
  auto sorted = places;
  std::ranges::sort(sorted);
  DTENSOR_CHECK_VALUE(
      std::ranges::adjacent_find(sorted) == sorted.end() &&
          sorted.front() >= 0 &&
          sorted.back() < static_cast<int64_t>(origin.ranks.size()),
      "[DeviceMesh::concatenate] two of the meshes share a dimension of the "
      "mesh that they come from. Name each dimension once.");
  for (int64_t& place : places) {
    place = origin.ranks[static_cast<size_t>(place)];
  }
  return places;
}

} // namespace

DeviceMesh DeviceMesh::concatenate(const std::vector<DeviceMesh>& meshes) {
  constexpr const char* kWhere = "DeviceMesh::concatenate";
  DTENSOR_CHECK_VALUE(
      !meshes.empty(), "[{}] got no meshes. Pass at least one.", kWhere);
  std::vector<StatePtr> states;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  for (const DeviceMesh& mesh : meshes) {
    const MeshState& state = *mesh.state_;
    DTENSOR_CHECK_VALUE(
        state.names.empty() == meshes[0].state_->names.empty(),
        "[{}] only some of the meshes have names. Name the dimensions of all "
        "or none.",
        kWhere);
    states.push_back(mesh.state_);
    shape.insert(shape.end(), state.shape.begin(), state.shape.end());
    names.insert(names.end(), state.names.begin(), state.names.end());
  }
  const StatePtr origin = common_origin(meshes, states);
  auto result = detail::with_groups_of(
      *origin,
      DeviceMesh(
          origin->device_type,
          std::move(shape),
          ranks_side_by_side(meshes, *origin),
          std::move(names),
          origin->rank),
      kWhere);
  detail::remember_parents(*result.state_, origin);
  return result;
}

} // namespace dtensor
