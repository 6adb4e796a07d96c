// SPDX-License-Identifier: BSD-3-Clause
// Slices of a mesh, flatten(), unflatten() and concatenate().
#include <dtensor/layout/mesh_state_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

std::vector<StatePtr> family(const StatePtr& state) {
  std::vector<StatePtr> members{state};
  const std::lock_guard<std::mutex> lock(state->mutex);
  for (const auto& weak : state->sliced_from) {
    if (auto parent = weak.lock()) {
      members.push_back(std::move(parent));
    }
  }
  return members;
}

void remember_parents(const MeshState& slice, const StatePtr& parent) {
  const std::vector<StatePtr> parents = family(parent);
  const std::lock_guard<std::mutex> lock(slice.mutex);
  auto& known = slice.sliced_from;
  std::erase_if(known, [](const auto& weak) { return weak.expired(); });
  for (const StatePtr& candidate : parents) {
    const bool is_known = std::ranges::any_of(known, [&](const auto& weak) {
      return !weak.owner_before(candidate) && !candidate.owner_before(weak);
    });
    if (!is_known) {
      known.push_back(candidate);
    }
  }
}

DeviceMesh with_groups_of(
    const MeshState& origin,
    const DeviceMesh& pure,
    const char* where) {
  return origin.groups
      ? with_groups(pure, origin.groups->make_for(pure, origin.shape, where))
      : pure;
}

} // namespace dtensor::detail

namespace dtensor {
namespace {

using detail::family;
using detail::find_flattened;
using detail::FlattenedMesh;
using detail::join_names;
using detail::make_state;
using detail::MeshState;
using detail::point_of;
using detail::remember_flattened;
using detail::remember_parents;
using detail::StatePtr;
using detail::with_groups_of;

// Returns the dimensions with these names, in mesh order.
std::vector<int64_t> dims_of(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names) {
  DTENSOR_CHECK_VALUE(
      !names.empty(),
      "[DeviceMesh] a slice needs a dimension. Name at least one.");
  std::vector<int64_t> dims;
  for (const std::string& name : names) {
    dims.push_back(mesh.dim_of(name));
    DTENSOR_CHECK_VALUE(
        dims.size() == 1 || dims[dims.size() - 2] < dims.back(),
        "[DeviceMesh] a slice must keep the order of the mesh dimensions: {} "
        "of {}. Name each dimension once, in that order.",
        join_names(names),
        join_names(mesh.mesh_dim_names()));
  }
  return dims;
}

// Ranks with coordinates equal to `through`, except in the dimensions `dims`.
std::vector<int64_t> ranks_of_slice(
    const DeviceMesh& mesh,
    const std::vector<int64_t>& dims,
    const std::vector<int64_t>& through) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    std::vector<int64_t> coordinate = mesh.coordinate_of(i);
    for (const int64_t dim : dims) {
      coordinate[static_cast<size_t>(dim)] = through[static_cast<size_t>(dim)];
    }
    if (coordinate == through) {
      ranks.push_back(mesh.ranks()[static_cast<size_t>(i)]);
    }
  }
  return ranks;
}

StatePtr state_of(const MeshState& root, FlattenedMesh flattened) {
  const auto size = static_cast<int64_t>(flattened.ranks.size());
  return make_state(
      {root.device_type,
       {size},
       std::move(flattened.ranks),
       {std::move(flattened.name)},
       root.rank,
       std::move(flattened.groups)});
}

// Throws if `name` is in use. A name identifies one mesh among a mesh and the
// meshes that it was sliced from.
void check_name_is_free(
    const std::vector<StatePtr>& members,
    const std::string& name,
    const std::vector<int64_t>& ranks) {
  for (const StatePtr& member : members) {
    const auto& names = member->names;
    const auto flattened = find_flattened(*member, name);
    DTENSOR_CHECK_VALUE(
        std::ranges::find(names, name) == names.end() &&
            (!flattened || flattened->ranks == ranks),
        "[DeviceMesh::flatten] the name \"{}\" is taken by another mesh: the "
        "dimensions are {}. Choose another name.",
        name,
        join_names(names));
  }
}

template <class T>
std::vector<T>
replaced(const std::vector<T>& all, size_t at, const std::vector<T>& by) {
  std::vector<T> result(all.begin(), all.begin() + static_cast<long>(at));
  result.insert(result.end(), by.begin(), by.end());
  result.insert(
      result.end(), all.begin() + static_cast<long>(at) + 1, all.end());
  return result;
}

// Returns the slice of `mesh` that keeps `dims` and contains this rank.
StatePtr kept_dims(
    const DeviceMesh& mesh,
    const std::vector<int64_t>& dims,
    const std::vector<std::string>& names) {
  std::vector<int64_t> sizes;
  for (const int64_t dim : dims) {
    sizes.push_back(mesh.size(dim));
  }
  const auto& groups = detail::mesh_groups(mesh);
  return make_state(
      {mesh.device_type(),
       std::move(sizes),
       ranks_of_slice(mesh, dims, point_of(mesh)),
       names,
       mesh.get_rank(),
       groups ? groups->select(dims) : nullptr});
}

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
    for (const StatePtr& candidate : family(state)) {
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

DeviceMesh DeviceMesh::operator[](std::string_view name) const {
  return slice({std::string(name)});
}

DeviceMesh DeviceMesh::operator[](
    std::initializer_list<std::string_view> names) const {
  return slice(std::vector<std::string>(names.begin(), names.end()));
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  if (names.size() == 1) {
    if (auto flattened = find_flattened(*state_, names[0])) {
      return DeviceMesh(state_of(*state_, std::move(*flattened)));
    }
  }
  const auto is_dimension = [&](const auto& name) {
    return std::ranges::find(state_->names, name) != state_->names.end();
  };
  if (!state_->names.empty() && !std::ranges::all_of(names, is_dimension)) {
    auto slice = detail::slice_with_flattened(*this, names);
    remember_parents(*slice.state_, state_);
    return slice;
  }
  const std::vector<int64_t> dims = dims_of(*this, names);
  if (names == mesh_dim_names()) {
    return *this;
  }
  DeviceMesh slice(kept_dims(*this, dims, names));
  remember_parents(*slice.state_, state_);
  return slice;
}

std::string detail::dim_name(const DeviceMesh& mesh, size_t dim) {
  const auto& names = mesh.mesh_dim_names();
  return names.empty() ? std::to_string(dim) : names[dim];
}

DeviceMesh DeviceMesh::operator[](int64_t dim) const {
  const auto from_front = detail::wrap_mesh_dim(ndim(), dim, "DeviceMesh");
  if (ndim() == 1) {
    return *this;
  }
  if (!mesh_dim_names().empty()) {
    return (*this)[mesh_dim_names()[static_cast<size_t>(from_front)]];
  }
  return DeviceMesh(kept_dims(*this, {from_front}, {}));
}

DeviceMesh DeviceMesh::flatten(std::string name) const {
  if (name.empty()) {
    DTENSOR_CHECK_VALUE(
        !mesh_dim_names().empty(),
        "[DeviceMesh::flatten] the mesh has no names to make one from. Pass a "
        "name.");
    name = c10::Join("_", mesh_dim_names());
  }
  if (mesh_dim_names() == std::vector<std::string>{name}) {
    return *this;
  }
  const std::vector<StatePtr> members = family(state_);
  check_name_is_free(members, name, ranks());
  for (const StatePtr& member : members) {
    if (auto known = find_flattened(*member, name)) {
      return DeviceMesh(state_of(*state_, std::move(*known)));
    }
  }
  auto joined = with_groups_of(
      *state_,
      DeviceMesh(device_type(), {size()}, ranks(), {name}, get_rank()),
      "DeviceMesh::flatten");
  const FlattenedMesh flattened{name, ranks(), joined.state_->groups};
  for (const StatePtr& member : members) {
    remember_flattened(*member, flattened);
  }
  remember_parents(*joined.state_, state_);
  return joined;
}

DeviceMesh DeviceMesh::unflatten(
    int64_t dim,
    const std::vector<int64_t>& sizes,
    const std::vector<std::string>& mesh_dim_names) const {
  constexpr const char* kWhere = "DeviceMesh::unflatten";
  const auto dim_size = size(dim); // throws for an invalid `dim`
  const auto at = static_cast<size_t>(dim < 0 ? dim + ndim() : dim);
  DTENSOR_CHECK_VALUE(
      !sizes.empty() && numel(sizes) == dim_size,
      "[{}] mesh dim {} has {}, which is not the product of the sizes {}. Pass "
      "sizes whose product is the number of ranks.",
      kWhere,
      dim_label(dim),
      detail::pluralize(dim_size, "rank"),
      SizesRef(sizes));
  const bool has_names = !state_->names.empty();
  DTENSOR_CHECK_VALUE(
      mesh_dim_names.size() == (has_names ? sizes.size() : 0),
      "[{}] {} for {} of a mesh {} names. Pass one for each dimension if the "
      "mesh has names, otherwise none.",
      kWhere,
      detail::pluralize(mesh_dim_names.size(), "name"),
      detail::pluralize(sizes.size(), "dimension"),
      has_names ? "with" : "without");
  const DeviceMesh pure(
      device_type(),
      replaced(state_->shape, at, sizes),
      ranks(),
      has_names ? replaced(state_->names, at, mesh_dim_names)
                : std::vector<std::string>(),
      get_rank());
  auto result = with_groups_of(*state_, pure, kWhere);
  remember_parents(*result.state_, state_);
  return result;
}

DeviceMesh DeviceMesh::unflatten(
    std::string_view name,
    const std::vector<int64_t>& sizes,
    const std::vector<std::string>& mesh_dim_names) const {
  return unflatten(dim_of(name), sizes, mesh_dim_names);
}

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
  auto result = with_groups_of(
      *origin,
      DeviceMesh(
          origin->device_type,
          std::move(shape),
          ranks_side_by_side(meshes, *origin),
          std::move(names),
          origin->rank),
      kWhere);
  remember_parents(*result.state_, origin);
  return result;
}

} // namespace dtensor
