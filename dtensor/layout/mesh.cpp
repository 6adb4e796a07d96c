// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/mesh.h>

#include <dtensor/error.h>
#include <dtensor/layout/intern_impl.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace dtensor {
namespace {

using detail::MeshState;

// Returns the explicit choice of backend or options; usually empty.
std::string_view choice_of(const MeshState& state) {
  return state.groups == nullptr ? std::string_view() : state.groups->choice();
}

size_t hash_of(const MeshState& state) {
  size_t hash = static_cast<size_t>(state.rank);
  hash = detail::hash_combine(hash, static_cast<size_t>(state.device_type));
  hash = detail::hash_combine(hash, reinterpret_cast<size_t>(state.world));
  hash = detail::hash_each(hash, state.shape);
  hash = detail::hash_each(hash, state.ranks);
  hash = detail::hash_each(hash, state.names);
  return detail::hash_combine(
      hash, std::hash<std::string_view>()(choice_of(state)));
}

bool equal(const MeshState& a, const MeshState& b) {
  return a.rank == b.rank && a.device_type == b.device_type &&
      a.world == b.world && a.shape == b.shape && a.ranks == b.ranks &&
      a.names == b.names && choice_of(a) == choice_of(b);
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

// Returns the living state equal to `state`, or `state` itself. The table is
// never destroyed, because static objects may hold meshes.
detail::StatePtr intern(std::unique_ptr<MeshState> state) {
  static auto* table = new detail::InternTable<MeshState>;
  const auto me = std::ranges::find(state->ranks, state->rank);
  if (me != state->ranks.end()) {
    state->coordinate = coordinate_in(state->shape, me - state->ranks.begin());
  }
  // `value` stays valid: `make` passes the same object to the table.
  const MeshState& value = *state;
  return table->get(
      hash_of(value),
      [&](const MeshState& other) { return equal(value, other); },
      [&] { return std::move(state); });
}

void check_shape(
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks) {
  DTENSOR_CHECK_VALUE(
      !shape.empty() &&
          std::ranges::all_of(shape, [](int64_t n) { return n > 0; }),
      "[DeviceMesh] invalid mesh shape: {}. Pass at least one dimension, and "
      "positive sizes.",
      SizesRef(shape));
  DTENSOR_CHECK_VALUE(
      static_cast<size_t>(numel(shape)) == ranks.size(),
      "[DeviceMesh] {} for a mesh of shape {}. Pass {}, in row-major order.",
      detail::pluralize(ranks.size(), "rank"),
      SizesRef(shape),
      detail::pluralize(numel(shape), "rank"));
  std::unordered_set<int64_t> seen;
  for (const int64_t rank : ranks) {
    DTENSOR_CHECK_VALUE(
        rank >= 0 && seen.insert(rank).second,
        "[DeviceMesh] {}{}. Pass different global ranks.",
        rank < 0 ? "a rank is negative: " : "a rank occurs twice: ",
        rank);
  }
}

void check_names(const std::vector<std::string>& names, size_t ndim) {
  DTENSOR_CHECK_VALUE(
      names.empty() || names.size() == ndim,
      "[DeviceMesh] {} for {}: {}. Pass one name per dimension.",
      detail::pluralize(names.size(), "name"),
      detail::pluralize(ndim, "dimension"),
      detail::join_names(names));
  for (auto name = names.begin(); name != names.end(); ++name) {
    DTENSOR_CHECK_VALUE(
        !name->empty(),
        "[DeviceMesh] a dimension has an empty name: dimension {}. Name all "
        "dimensions or none.",
        name - names.begin());
    DTENSOR_CHECK_VALUE(
        std::find(names.begin(), name, *name) == name,
        "[DeviceMesh] two dimensions are called \"{}\": {}. Give each its own "
        "name.",
        *name,
        detail::join_names(names));
  }
}

} // namespace

int64_t detail::wrap_mesh_dim(int64_t ndim, int64_t dim, const char* where) {
  DTENSOR_CHECK_INDEX(
      -ndim <= dim && dim < ndim,
      "[{}] no dimension {}: the mesh has {}. Use one from {} to {}.",
      where,
      dim,
      ndim,
      -ndim,
      ndim - 1);
  return dim < 0 ? dim + ndim : dim;
}

detail::StatePtr detail::make_state(MeshFields fields) {
  auto state = std::make_unique<MeshState>(std::move(fields));
  if (state->groups != nullptr) {
    state->world = state->groups->world();
  }
  return intern(std::move(state));
}

DeviceMesh::DeviceMesh(
    c10::DeviceType device_type,
    std::vector<int64_t> shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names,
    int64_t rank) {
  check_shape(shape, ranks);
  check_names(mesh_dim_names, shape.size());
  state_ = detail::make_state(
      {device_type,
       std::move(shape),
       std::move(ranks),
       std::move(mesh_dim_names),
       rank,
       nullptr});
}

DeviceMesh detail::with_groups(
    const DeviceMesh& pure,
    std::shared_ptr<MeshGroups> groups) {
  MeshFields fields = MeshAccess::state(pure);
  fields.groups = std::move(groups);
  return MeshAccess::mesh(make_state(std::move(fields)));
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
  return state_->shape[static_cast<size_t>(
      detail::wrap_mesh_dim(ndim(), dim, "DeviceMesh"))];
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
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    DTENSOR_CHECK_INDEX(
        !names.empty(),
        "[DeviceMesh] no dimension is called \"{}\": the dimensions have no "
        "names. Pass names when making the mesh.",
        name);
    DTENSOR_THROW_INDEX(
        "[DeviceMesh] no dimension is called \"{}\": the names are {}. Use one "
        "of them.",
        name,
        detail::join_names(names));
  }
  return found - names.begin();
}

std::string DeviceMesh::dim_label(int64_t dim) const {
  const int64_t wrapped = detail::wrap_mesh_dim(ndim(), dim, "DeviceMesh");
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
      "[DeviceMesh::get_local_rank] a dimension is required: the mesh has {}. "
      "Pass a dimension or its name.",
      ndim());
  return get_local_rank(0);
}

int64_t DeviceMesh::get_local_rank(int64_t dim) const {
  const int64_t wrapped = detail::wrap_mesh_dim(ndim(), dim, "DeviceMesh");
  DTENSOR_CHECK(
      contains_this_rank(),
      "[DeviceMesh::get_local_rank] rank {} is outside the mesh of ranks {}. "
      "Check contains_this_rank() first.",
      get_rank(),
      SizesRef(ranks()));
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

// Equal meshes share one state.
bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  return a.state_ == b.state_;
}

} // namespace dtensor
