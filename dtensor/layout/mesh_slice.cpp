// SPDX-License-Identifier: BSD-3-Clause
// Slices of a mesh, dimensions joined into one, taken apart, and put together.
#include <dtensor/error.h>
#include <dtensor/layout/mesh_dimension_impl.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace dtensor {
namespace {

using detail::FlattenedMesh;
using detail::join_names;
using detail::make_state;
using detail::MeshState;
using detail::StatePtr;

// The dimensions called so, in the order of the mesh.
std::vector<int64_t> dims_of(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names) {
  DTENSOR_CHECK_VALUE(
      !names.empty(),
      "DeviceMesh",
      "a slice needs a dimension. Name at least one.");
  std::vector<int64_t> dims;
  for (const std::string& name : names) {
    dims.push_back(mesh.dim_of(name));
    DTENSOR_CHECK_VALUE(
        dims.size() == 1 || dims[dims.size() - 2] < dims.back(),
        "DeviceMesh",
        "a slice keeps the order of the mesh: ",
        join_names(names),
        " of ",
        join_names(mesh.mesh_dim_names()),
        ". Name each dimension once, in that order.");
  }
  return dims;
}

// The ranks that differ from `through` in the dimensions `dims` alone.
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

// Where this rank is; of a rank outside the mesh, where the first one is.
std::vector<int64_t> point_of(const DeviceMesh& mesh) {
  return mesh.get_coordinate().value_or(
      std::vector<int64_t>(static_cast<size_t>(mesh.ndim()), 0));
}

// The mesh itself and the living ones that it was sliced from.
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
    const bool is_known =
        std::any_of(known.begin(), known.end(), [&](const auto& weak) {
          return !weak.owner_before(candidate) && !candidate.owner_before(weak);
        });
    if (!is_known) {
      known.push_back(candidate);
    }
  }
}

// The flattened mesh called so. Call with the lock of `state` held.
const FlattenedMesh* find_flattened_locked(
    const MeshState& state,
    std::string_view name) {
  for (const FlattenedMesh& flattened : state.flattened) {
    if (flattened.name == name) {
      return &flattened;
    }
  }
  return nullptr;
}

std::optional<FlattenedMesh> find_flattened(
    const MeshState& state,
    std::string_view name) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  const FlattenedMesh* found = find_flattened_locked(state, name);
  return found ? std::optional(*found) : std::nullopt;
}

void remember_flattened(const MeshState& state, const FlattenedMesh& mesh) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (!find_flattened_locked(state, mesh.name)) {
    state.flattened.push_back(mesh);
  }
}

StatePtr state_of(const MeshState& root, FlattenedMesh flattened) {
  const auto size = static_cast<int64_t>(flattened.ranks.size());
  return make_state(
      root.device_type,
      {size},
      std::move(flattened.ranks),
      {std::move(flattened.name)},
      root.rank,
      std::move(flattened.groups));
}

// Among a mesh and those it was sliced from a name means one mesh.
void check_name_is_free(
    const std::vector<StatePtr>& members,
    const std::string& name,
    const std::vector<int64_t>& ranks) {
  for (const StatePtr& member : members) {
    const auto& names = member->names;
    const auto flattened = find_flattened(*member, name);
    DTENSOR_CHECK_VALUE(
        std::find(names.begin(), names.end(), name) == names.end() &&
            (!flattened || flattened->ranks == ranks),
        "DeviceMesh::flatten",
        "the name \"",
        name,
        "\" is taken by another mesh: the dimensions are ",
        join_names(names),
        ". Choose another name.");
  }
}

// What is made of `origin`, with groups if that has some.
DeviceMesh with_groups_of(
    const MeshState& origin,
    const DeviceMesh& pure,
    const char* where) {
  return origin.groups
      ? detail::with_groups(pure, origin.groups->make_for(pure, where))
      : pure;
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

bool has_all(const std::vector<int64_t>& ranks, const DeviceMesh& mesh) {
  return std::all_of(
      mesh.ranks().begin(), mesh.ranks().end(), [&](int64_t rank) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      });
}

// The living mesh that has the ranks of all of them, the largest one.
StatePtr common_origin(
    const std::vector<DeviceMesh>& meshes,
    const std::vector<StatePtr>& states) {
  StatePtr origin;
  for (const StatePtr& state : states) {
    for (const StatePtr& candidate : family(state)) {
      const bool fits =
          std::all_of(meshes.begin(), meshes.end(), [&](const auto& mesh) {
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
      "DeviceMesh::concatenate",
      "the meshes are no slices of one mesh that is still there. Slice them "
      "from one mesh, and keep it.");
  return origin;
}

// Steps along each of the meshes add up in the order of the origin's ranks.
std::vector<int64_t> ranks_side_by_side(
    const std::vector<DeviceMesh>& meshes,
    const MeshState& origin) {
  const auto place_of = [&](int64_t rank) {
    const auto& ranks = origin.ranks;
    return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
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
  std::sort(sorted.begin(), sorted.end());
  DTENSOR_CHECK_VALUE(
      std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() &&
          sorted.front() >= 0 &&
          sorted.back() < static_cast<int64_t>(origin.ranks.size()),
      "DeviceMesh::concatenate",
      "two of the meshes share a dimension of the mesh that they come from. "
      "Name each dimension once.");
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
  const std::vector<int64_t> dims = dims_of(*this, names);
  if (names == mesh_dim_names()) {
    return *this;
  }
  std::vector<int64_t> sizes;
  for (const int64_t dim : dims) {
    sizes.push_back(size(dim));
  }
  DeviceMesh slice(make_state(
      device_type(),
      std::move(sizes),
      ranks_of_slice(*this, dims, point_of(*this)),
      names,
      get_rank(),
      state_->groups ? state_->groups->select(dims) : nullptr));
  remember_parents(*slice.state_, state_);
  return slice;
}

DeviceMesh detail::along_dimension(const DeviceMesh& mesh, int64_t dim) {
  const auto& names = mesh.mesh_dim_names();
  if (mesh.ndim() == 1) {
    return mesh;
  }
  if (!names.empty()) {
    return mesh[names[static_cast<size_t>(dim)]];
  }
  const DeviceMesh pure(
      mesh.device_type(),
      {mesh.size(dim)},
      ranks_of_slice(mesh, {dim}, point_of(mesh)),
      {},
      mesh.get_rank());
  const auto& groups = mesh_groups(mesh);
  return groups ? with_groups(pure, groups->select({dim})) : pure;
}

DeviceMesh DeviceMesh::flatten(std::string name) const {
  if (name.empty()) {
    DTENSOR_CHECK_VALUE(
        !mesh_dim_names().empty(),
        "DeviceMesh::flatten",
        "the mesh has no names to make one from. Pass a name.");
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
  const auto whole = size(dim); // or it throws
  const auto at = static_cast<size_t>(dim < 0 ? dim + ndim() : dim);
  const auto product = std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  DTENSOR_CHECK_VALUE(
      !sizes.empty() && product == whole,
      kWhere,
      "mesh dim ",
      dim_label(dim),
      " has ",
      whole,
      " ranks, and the sizes ",
      SizesRef(sizes),
      " another number. Give sizes whose product that is.");
  const bool has_names = !state_->names.empty();
  DTENSOR_CHECK_VALUE(
      mesh_dim_names.size() == (has_names ? sizes.size() : 0),
      kWhere,
      mesh_dim_names.size(),
      " names for ",
      sizes.size(),
      " dimensions of a mesh ",
      has_names ? "with" : "without",
      " names. Give one for each if the mesh has names, and else none.");
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
      !meshes.empty(), kWhere, "there is no mesh. Give at least one.");
  std::vector<StatePtr> states;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  for (const DeviceMesh& mesh : meshes) {
    const MeshState& state = *mesh.state_;
    DTENSOR_CHECK_VALUE(
        state.names.empty() == meshes[0].state_->names.empty(),
        kWhere,
        "some of the meshes have names. Name the dimensions of all or none.");
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
