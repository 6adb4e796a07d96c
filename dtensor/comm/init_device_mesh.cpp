// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/init_device_mesh.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/group/mesh_groups_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>

#include <algorithm>
#include <numeric>

namespace dtensor {
namespace {

// Checks that `group`, this rank's group along `dim`, has the expected ranks.
void check_group(
    const Group* group,
    const std::vector<int64_t>& expected,
    const std::string& dim) {
  DTENSOR_CHECK_VALUE(
      group != nullptr,
      "[from_group] the group for mesh dim {} is null. Pass a group from "
      "new_group().",
      dim);
  DTENSOR_CHECK_VALUE(
      group->ranks() == expected,
      "[from_group] the group for mesh dim {} has ranks {}, but the mesh has "
      "{}. Pass a group of these ranks, in this order.",
      dim,
      SizesRef(group->ranks()),
      SizesRef(expected));
}

void check_world(
    std::string_view where,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks) {
  const int64_t world_size = get_world_size();
  for (int64_t rank : ranks) {
    DTENSOR_CHECK_VALUE(
        rank >= 0 && rank < world_size,
        "[{}] a mesh of shape ({}) needs rank {}, but the world has {}. "
        "Start more ranks or make the mesh smaller.",
        where,
        c10::Join(", ", shape),
        rank,
        detail::pluralize(world_size, "rank"));
  }
}

// Makes a mesh without groups, and checks the ranks.
DeviceMesh pure_mesh(
    const char* where,
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names) {
  check_world(where, mesh_shape, ranks);
  return {
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names),
      get_rank()};
}

// Returns this rank's position in the mesh; `groups` must have one group per
// mesh dimension.
int64_t place_among(
    const std::vector<GroupPtr>& groups,
    const DeviceMesh& pure) {
  DTENSOR_CHECK_VALUE(
      static_cast<int64_t>(groups.size()) == pure.ndim(),
      "[from_group] got {} for a mesh of {}. Pass one per dimension.",
      detail::pluralize(groups.size(), "group"),
      detail::pluralize(pure.ndim(), "dimension"));
  const auto& all = pure.ranks();
  const auto mine = std::ranges::find(all, get_rank());
  DTENSOR_CHECK_VALUE(
      mine != all.end(),
      "[from_group] rank {} is outside the mesh of ranks {}. Call it on ranks "
      "of the mesh only.",
      get_rank(),
      SizesRef(all));
  return mine - all.begin();
}

} // namespace

DeviceMesh init_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<std::string> mesh_dim_names,
    const MeshOptions& options) {
  int64_t size = mesh_shape.empty() ? 0 : 1;
  for (int64_t n : mesh_shape) {
    DTENSOR_CHECK_VALUE(
        n > 0,
        "[init_device_mesh] mesh sizes must be positive: ({}). Use sizes of at "
        "least 1.",
        c10::Join(", ", mesh_shape));
    size *= n;
  }
  DTENSOR_CHECK_VALUE(
      size > 0,
      "[init_device_mesh] the shape is empty. Pass at least one size.");
  DTENSOR_CHECK_VALUE(
      size <= get_world_size(),
      "[init_device_mesh] a mesh of shape ({}) needs {}, but the world has {}. "
      "Start more ranks or make the mesh smaller.",
      c10::Join(", ", mesh_shape),
      detail::pluralize(size, "rank"),
      get_world_size());
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_device_mesh(
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names),
      options);
}

DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names,
    const MeshOptions& options) {
  const auto pure = pure_mesh(
      "make_device_mesh",
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names));
  return detail::with_groups(pure, detail::groups_of(pure, options));
}

DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    const at::Tensor& ranks,
    std::vector<std::string> mesh_dim_names,
    const MeshOptions& options) {
  DTENSOR_CHECK_VALUE(
      ranks.defined() && at::isIntegralType(ranks.scalar_type(), false) &&
          ranks.dim() > 0,
      "[make_device_mesh] expected an integer tensor of the mesh's shape, got "
      "{} with {}. Pass the ranks of the mesh.",
      ranks.defined() ? ranks.toString() : "undefined",
      detail::pluralize(ranks.defined() ? ranks.dim() : 0, "dimension"));
  const auto flat = ranks.to(at::kCPU, at::kLong).contiguous();
  const auto* const first = flat.const_data_ptr<int64_t>();
  return make_device_mesh(
      device_type,
      ranks.sizes().vec(),
      std::vector<int64_t>(first, first + flat.numel()),
      std::move(mesh_dim_names),
      options);
}

DeviceMesh from_group(
    const GroupPtr& group,
    c10::DeviceType device_type,
    std::vector<std::string> mesh_dim_names) {
  DTENSOR_CHECK_VALUE(
      group != nullptr,
      "[from_group] the group is null. Pass a group from new_group().");
  return from_group(
      std::vector<GroupPtr>{group},
      device_type,
      {group->size()},
      group->ranks(),
      std::move(mesh_dim_names));
}

DeviceMesh from_group(
    const std::vector<GroupPtr>& groups,
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names) {
  const auto pure = pure_mesh(
      "from_group",
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names));
  const auto mine = place_among(groups, pure);
  for (size_t dim = 0; dim < groups.size(); ++dim) {
    check_group(
        groups[dim].get(),
        detail::ranks_along(pure, dim, mine),
        pure.dim_label(static_cast<int64_t>(dim)));
  }
  return detail::with_groups(pure, detail::groups_of(groups));
}

} // namespace dtensor
