// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/owner_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>

#include <algorithm>
#include <numeric>

namespace dtensor {
namespace {

bool contains(const std::vector<int64_t>& ranks, int64_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// The groups of this rank, one per mesh dimension; null in all dimensions on
/// a rank outside the mesh.
class Groups final : public detail::MeshGroups {
 public:
  explicit Groups(
      std::vector<GroupPtr> groups,
      std::shared_ptr<World> world = this_world())
      : groups_(std::move(groups)),
        world_(std::move(world)) {}

  std::shared_ptr<detail::MeshGroups> select(
      c10::ArrayRef<int64_t> dims) const override {
    std::vector<GroupPtr> selected;
    for (int64_t dim : dims) {
      selected.push_back(group(dim));
    }
    return std::make_shared<Groups>(std::move(selected), world_);
  }

  std::shared_ptr<detail::MeshGroups> flatten(
      const std::vector<int64_t>& ranks,
      const std::string& name) const override {
    detail::check_owner(
        "DeviceMesh::flatten", [] { return "the mesh"; }, world_.get());
    std::vector<GroupPtr> joined = {
        contains(ranks, get_rank()) ? new_group(ranks, name) : nullptr};
    return std::make_shared<Groups>(std::move(joined));
  }

  const void* world() const override {
    return world_.get();
  }

  const GroupPtr& group(int64_t dim) const {
    return groups_.at(static_cast<size_t>(dim));
  }

 private:
  std::vector<GroupPtr> groups_;
  std::shared_ptr<World> world_;
};

// The ranks along `dim` through the position `mine` of a row-major mesh.
std::vector<int64_t> ranks_along(
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks,
    size_t dim,
    int64_t mine) {
  const int64_t stride = std::accumulate(
      shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1,
      shape.end(),
      int64_t{1},
      std::multiplies<>());
  const int64_t first = mine - mine / stride % shape[dim] * stride;
  std::vector<int64_t> result;
  for (int64_t i = 0; i < shape[dim]; ++i) {
    result.push_back(ranks[static_cast<size_t>(first + i * stride)]);
  }
  return result;
}

std::shared_ptr<Groups> groups_of(const DeviceMesh& mesh) {
  const std::vector<int64_t> shape = mesh.shape().vec();
  const auto& ranks = mesh.ranks();
  const auto& names = mesh.mesh_dim_names();
  const auto mine = std::find(ranks.begin(), ranks.end(), get_rank());
  std::vector<GroupPtr> groups(shape.size());
  for (size_t dim = 0; mine != ranks.end() && dim < shape.size(); ++dim) {
    groups[dim] = new_group(
        ranks_along(shape, ranks, dim, mine - ranks.begin()),
        names.empty() ? std::to_string(dim) : names[dim]);
  }
  return std::make_shared<Groups>(std::move(groups));
}

void check_world(
    std::string_view where,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks) {
  const int64_t world_size = get_world_size();
  for (int64_t rank : ranks) {
    DTENSOR_CHECK_VALUE(
        rank >= 0 && rank < world_size,
        where,
        "a mesh of shape (",
        c10::Join(", ", shape),
        ") needs rank ",
        rank,
        ", but the world has ",
        world_size,
        world_size == 1 ? " rank" : " ranks",
        ". Start more ranks or make the mesh smaller.");
  }
}

} // namespace

DeviceMesh init_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<std::string> mesh_dim_names) {
  int64_t size = mesh_shape.empty() ? 0 : 1;
  for (int64_t n : mesh_shape) {
    DTENSOR_CHECK_VALUE(
        n > 0,
        "init_device_mesh",
        "every dimension needs a rank: (",
        c10::Join(", ", mesh_shape),
        "). Use positive sizes.");
    size *= n;
  }
  DTENSOR_CHECK_VALUE(
      size > 0,
      "init_device_mesh",
      "the shape is empty. Give the mesh at least one dimension.");
  DTENSOR_CHECK_VALUE(
      size <= get_world_size(),
      "init_device_mesh",
      "a mesh of shape (",
      c10::Join(", ", mesh_shape),
      ") needs ",
      size,
      " ranks, but the world has ",
      get_world_size(),
      ". Start more ranks or make the mesh smaller.");
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_device_mesh(
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names));
}

DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names) {
  check_world("make_device_mesh", mesh_shape, ranks);
  // A pure mesh first: it checks what the groups are made from.
  const DeviceMesh pure(
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names),
      get_rank());
  return detail::with_groups(pure, groups_of(pure));
}

Group& get_group(const DeviceMesh& mesh, int64_t dim) {
  // Nobody else gives meshes groups.
  const auto* groups =
      static_cast<const Groups*>(detail::mesh_groups(mesh).get());
  DTENSOR_CHECK(
      groups != nullptr,
      "get_group",
      "this mesh is a pure value without communication. Make it with "
      "init_device_mesh.");
  const int64_t ndim = mesh.ndim();
  DTENSOR_CHECK_INDEX(
      dim >= -ndim && dim < ndim,
      "get_group",
      "no dimension ",
      dim,
      " in a mesh of ",
      ndim,
      ". Use one from ",
      -ndim,
      " to ",
      ndim - 1,
      ".");
  const GroupPtr& group = groups->group(dim < 0 ? dim + ndim : dim);
  DTENSOR_CHECK(
      group != nullptr,
      "get_group",
      "rank ",
      mesh.get_rank(),
      " is outside the mesh. Check contains_this_rank() first.");
  return *group;
}

Group& get_group(const DeviceMesh& mesh, std::string_view name) {
  return get_group(mesh, mesh.dim_of(name));
}

} // namespace dtensor
