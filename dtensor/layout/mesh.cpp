// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/error.h>
#include <dtensor/layout/intern_impl.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include <c10/util/StringUtil.h>

namespace dtensor {
namespace detail {

// What DeviceMesh::flatten made, without a handle to it: a mesh that kept its
// flattened meshes alive would be kept alive by them.
struct FlattenedMesh {
  std::string name;
  std::vector<int64_t> ranks;
  std::shared_ptr<MeshGroups> groups;
};

struct MeshState {
  c10::DeviceType device_type;
  std::vector<int64_t> shape;
  std::vector<int64_t> ranks;
  std::vector<std::string> names;
  int64_t rank;
  std::shared_ptr<MeshGroups> groups;
  // Follows from the above.
  std::optional<std::vector<int64_t>> coordinate;

  // What flatten() and slice() remember; none of it is part of the value.
  mutable std::mutex mutex;
  mutable std::vector<FlattenedMesh> flattened;
  mutable std::vector<std::weak_ptr<const MeshState>> sliced_from;
};

} // namespace detail

namespace {

using detail::FlattenedMesh;
using detail::MeshState;
using StatePtr = std::shared_ptr<const MeshState>;

std::string join_names(const std::vector<std::string>& names) {
  return c10::Join(", ", names);
}

const void* world_of(const MeshState& state) {
  return state.groups ? state.groups->world() : nullptr;
}

size_t hash_of(const MeshState& state) {
  size_t hash = static_cast<size_t>(state.rank);
  hash = detail::hash_combine(hash, static_cast<size_t>(state.device_type));
  hash = detail::hash_combine(hash, reinterpret_cast<size_t>(world_of(state)));
  for (const int64_t size : state.shape) {
    hash = detail::hash_combine(hash, static_cast<size_t>(size));
  }
  for (const int64_t rank : state.ranks) {
    hash = detail::hash_combine(hash, static_cast<size_t>(rank));
  }
  for (const std::string& name : state.names) {
    hash = detail::hash_combine(hash, std::hash<std::string>()(name));
  }
  return hash;
}

bool equal(const MeshState& a, const MeshState& b) {
  return a.rank == b.rank && a.device_type == b.device_type &&
      world_of(a) == world_of(b) && a.shape == b.shape && a.ranks == b.ranks &&
      a.names == b.names;
}

std::vector<int64_t> coordinate_in(
    const std::vector<int64_t>& shape,
    int64_t index) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    coordinate[d] = index % shape[d];
    index /= shape[d];
  }
  return coordinate;
}

// The state equal to `state`: the one that lives already, or this one. The
// table is never destroyed, for meshes in static objects.
StatePtr intern(std::unique_ptr<MeshState> state) {
  static auto* table = new detail::InternTable<MeshState>;
  const auto me =
      std::find(state->ranks.begin(), state->ranks.end(), state->rank);
  if (me != state->ranks.end()) {
    state->coordinate = coordinate_in(state->shape, me - state->ranks.begin());
  }
  return table->get(
      hash_of(*state),
      [&](const MeshState& other) { return equal(*state, other); },
      [&] { return std::move(state); });
}

StatePtr make_state(
    c10::DeviceType device_type,
    std::vector<int64_t> shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> names,
    int64_t rank,
    std::shared_ptr<MeshGroups> groups) {
  auto state = std::make_unique<MeshState>();
  state->device_type = device_type;
  state->shape = std::move(shape);
  state->ranks = std::move(ranks);
  state->names = std::move(names);
  state->rank = rank;
  state->groups = std::move(groups);
  return intern(std::move(state));
}

void check_shape(
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks) {
  DTENSOR_CHECK_VALUE(
      !shape.empty() &&
          std::all_of(
              shape.begin(), shape.end(), [](int64_t n) { return n > 0; }),
      "DeviceMesh",
      "not the shape of a mesh: ",
      SizesRef(shape),
      ". Give at least one dimension, and positive sizes.");
  DTENSOR_CHECK_VALUE(
      static_cast<size_t>(numel(shape)) == ranks.size(),
      "DeviceMesh",
      ranks.size(),
      " ranks for a mesh of shape ",
      SizesRef(shape),
      ". Give ",
      numel(shape),
      " ranks, in row-major order.");
  std::unordered_set<int64_t> seen;
  for (const int64_t rank : ranks) {
    DTENSOR_CHECK_VALUE(
        rank >= 0 && seen.insert(rank).second,
        "DeviceMesh",
        rank < 0 ? "a rank is negative: " : "a rank is there twice: ",
        rank,
        ". Give different global ranks.");
  }
}

void check_names(const std::vector<std::string>& names, size_t ndim) {
  DTENSOR_CHECK_VALUE(
      names.empty() || names.size() == ndim,
      "DeviceMesh",
      names.size(),
      " names for ",
      ndim,
      " dimensions: ",
      join_names(names),
      ". Give one name per dimension.");
  for (auto name = names.begin(); name != names.end(); ++name) {
    DTENSOR_CHECK_VALUE(
        !name->empty(),
        "DeviceMesh",
        "a dimension has an empty name: dimension ",
        name - names.begin(),
        ". Name all dimensions or none.");
    DTENSOR_CHECK_VALUE(
        std::find(names.begin(), name, *name) == name,
        "DeviceMesh",
        "two dimensions are called \"",
        *name,
        "\": ",
        join_names(names),
        ". Give each its own name.");
  }
}

int64_t wrap_dim(const MeshState& state, int64_t dim) {
  const auto ndim = static_cast<int64_t>(state.shape.size());
  DTENSOR_CHECK_INDEX(
      -ndim <= dim && dim < ndim,
      "DeviceMesh",
      "no dimension ",
      dim,
      ": the mesh has ",
      ndim,
      ". Use one from ",
      -ndim,
      " to ",
      ndim - 1,
      ".");
  return dim < 0 ? dim + ndim : dim;
}

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

std::optional<FlattenedMesh> find_flattened(
    const MeshState& state,
    std::string_view name) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  for (const FlattenedMesh& flattened : state.flattened) {
    if (flattened.name == name) {
      return flattened;
    }
  }
  return std::nullopt;
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

// A name may be used once among a mesh and those it was sliced from.
void check_name_is_free(
    const std::vector<StatePtr>& members,
    const std::string& name) {
  for (const StatePtr& member : members) {
    const auto& names = member->names;
    DTENSOR_CHECK_VALUE(
        std::find(names.begin(), names.end(), name) == names.end() &&
            !find_flattened(*member, name),
        "DeviceMesh::flatten",
        "the name \"",
        name,
        "\" is taken by another mesh: the dimensions are ",
        join_names(names),
        ". Choose another name.");
  }
}

} // namespace

DeviceMesh::DeviceMesh(
    c10::DeviceType device_type,
    std::vector<int64_t> shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names,
    int64_t rank,
    std::shared_ptr<MeshGroups> groups) {
  check_shape(shape, ranks);
  check_names(mesh_dim_names, shape.size());
  state_ = make_state(
      device_type,
      std::move(shape),
      std::move(ranks),
      std::move(mesh_dim_names),
      rank,
      std::move(groups));
}

c10::DeviceType DeviceMesh::device_type() const {
  return state_->device_type;
}

int64_t DeviceMesh::ndim() const {
  return static_cast<int64_t>(state_->shape.size());
}

c10::ArrayRef<int64_t> DeviceMesh::shape() const {
  return state_->shape;
}

int64_t DeviceMesh::size() const {
  return static_cast<int64_t>(state_->ranks.size());
}

int64_t DeviceMesh::size(int64_t dim) const {
  return state_->shape[static_cast<size_t>(wrap_dim(*state_, dim))];
}

int64_t DeviceMesh::size(std::string_view name) const {
  return size(dim_of(name));
}

const std::vector<int64_t>& DeviceMesh::ranks() const {
  return state_->ranks;
}

const std::vector<std::string>& DeviceMesh::mesh_dim_names() const {
  return state_->names;
}

int64_t DeviceMesh::dim_of(std::string_view name) const {
  const auto& names = state_->names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    DTENSOR_CHECK_INDEX(
        !names.empty(),
        "DeviceMesh",
        "no dimension is called \"",
        name,
        "\": the dimensions have no names. Pass names when making the mesh.");
    DTENSOR_CHECK_INDEX(
        false,
        "DeviceMesh",
        "no dimension is called \"",
        name,
        "\": the names are ",
        join_names(names),
        ". Use one of them.");
  }
  return found - names.begin();
}

std::string DeviceMesh::dim_label(int64_t dim) const {
  const int64_t wrapped = wrap_dim(*state_, dim);
  return state_->names.empty()
      ? std::to_string(wrapped)
      : "\"" + state_->names[static_cast<size_t>(wrapped)] + "\"";
}

int64_t DeviceMesh::get_rank() const {
  return state_->rank;
}

int64_t DeviceMesh::get_local_rank() const {
  DTENSOR_CHECK(
      ndim() == 1,
      "DeviceMesh::get_local_rank",
      "which dimension? The mesh has ",
      ndim(),
      ". Pass a dimension or its name.");
  return get_local_rank(0);
}

int64_t DeviceMesh::get_local_rank(int64_t dim) const {
  const int64_t wrapped = wrap_dim(*state_, dim);
  DTENSOR_CHECK(
      contains_this_rank(),
      "DeviceMesh::get_local_rank",
      "rank ",
      get_rank(),
      " is outside the mesh of ranks ",
      SizesRef(ranks()),
      ". Ask contains_this_rank() first.");
  return (*get_coordinate())[static_cast<size_t>(wrapped)];
}

int64_t DeviceMesh::get_local_rank(std::string_view name) const {
  return get_local_rank(dim_of(name));
}

const std::optional<std::vector<int64_t>>& DeviceMesh::get_coordinate() const {
  return state_->coordinate;
}

std::vector<int64_t> DeviceMesh::coordinate_of(int64_t index) const {
  return coordinate_in(state_->shape, index);
}

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
  const std::vector<int64_t> through = get_coordinate().value_or(
      std::vector<int64_t>(static_cast<size_t>(ndim()), 0));
  DeviceMesh slice(make_state(
      device_type(),
      std::move(sizes),
      ranks_of_slice(*this, dims, through),
      names,
      get_rank(),
      groups() ? groups()->select(dims) : nullptr));
  remember_parents(*slice.state_, state_);
  return slice;
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
  for (const StatePtr& member : members) {
    if (auto flattened = find_flattened(*member, name);
        flattened && flattened->ranks == ranks()) {
      return DeviceMesh(state_of(*state_, std::move(*flattened)));
    }
  }
  check_name_is_free(members, name);
  const FlattenedMesh flattened{
      name, ranks(), groups() ? groups()->flatten(ranks(), name) : nullptr};
  for (const StatePtr& member : members) {
    const std::lock_guard<std::mutex> lock(member->mutex);
    member->flattened.push_back(flattened);
  }
  return DeviceMesh(state_of(*state_, flattened));
}

const std::shared_ptr<MeshGroups>& DeviceMesh::groups() const {
  return state_->groups;
}

// Equal meshes share one state.
bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  return a.state_ == b.state_;
}

} // namespace dtensor
