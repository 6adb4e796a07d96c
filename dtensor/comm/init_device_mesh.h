// SPDX-License-Identifier: BSD-3-Clause
// Functions that make meshes over the ranks of this world, with the groups that
// let them communicate.
#pragma once

#include <dtensor/comm/group.h>
#include <dtensor/comm/world.h>
#include <dtensor/layout/mesh.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor {

/// Options of the functions that make meshes.
struct MeshOptions {
  /// Per-dimension group options, keyed by dimension name (or by index, "0", if
  /// unnamed): {{"tp", {.backend = "gloo"}}}.
  std::map<std::string, GroupOptions> backend_override = {};
  /// Modelled cost of collectives per dimension, with the same keys:
  /// {{"dp", {.latency_us = 30, .gigabytes_per_s = 12}}}. Plans of
  /// redistributions depend on it (redistribute/plan.h), so all ranks must pass
  /// the same numbers. By default typical numbers of the backend
  /// (World::link_cost).
  std::map<std::string, LinkCost> cost = {};
};

/// Makes a mesh of `mesh_shape` over ranks 0, 1, ... of this world in row-major
/// order, with one group per dimension. All ranks of the world must call it;
/// ranks beyond the mesh get a mesh that does not contain them.
/// Throws ValueError if the shape is empty, a size is not positive, or the mesh
/// is larger than the world. Throws ValueError also for a wrong number of
/// names, a repeated name, a key of backend_override or cost that is not a
/// dimension, and a cost that is not positive.
/// Python: torch.distributed.init_device_mesh.
DTENSOR_API DeviceMesh init_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<std::string> mesh_dim_names = {},
    const MeshOptions& options = {});

/// Makes a mesh of `mesh_shape` over the given global ranks (row-major). Throws
/// the errors of init_device_mesh, and ValueError for ranks that are repeated
/// or outside the world.
/// Python: DeviceMesh(device_type, mesh).
DTENSOR_API DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names = {},
    const MeshOptions& options = {});

/// Makes a mesh over an integer tensor of global ranks, with the tensor's
/// shape. Throws ValueError also for another dtype and for a tensor without
/// dimensions.
DTENSOR_API DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    const at::Tensor& ranks,
    std::vector<std::string> mesh_dim_names = {},
    const MeshOptions& options = {});

/// Makes a one-dimensional mesh over the ranks of `group`. The mesh
/// communicates over `group`. Throws ValueError for a null group.
/// Python: DeviceMesh.from_group.
DTENSOR_API DeviceMesh from_group(
    const GroupPtr& group,
    c10::DeviceType device_type,
    std::vector<std::string> mesh_dim_names = {});

/// Makes a mesh of `mesh_shape` over global `ranks` (row-major). Dimension d
/// communicates over groups[d]. The members of groups[d] must be the ranks of
/// the mesh whose coordinates differ from this rank's only in d, in order.
/// Throws ValueError for other groups.
DTENSOR_API DeviceMesh from_group(
    const std::vector<GroupPtr>& groups,
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names = {});

/// Returns this rank's group along one mesh dimension. The dimension may be
/// left out on a 1-D mesh only.
/// Throws RuntimeError on a pure mesh, on a rank outside the mesh, and without
/// a dimension on a mesh of several dimensions. Throws IndexError for a
/// dimension that the mesh does not have.
/// Python: DeviceMesh.get_group.
DTENSOR_API Group& get_group(const DeviceMesh& mesh);
DTENSOR_API Group& get_group(const DeviceMesh& mesh, int64_t dim);
DTENSOR_API Group& get_group(const DeviceMesh& mesh, std::string_view name);

/// Returns the groups of all dimensions. Python: DeviceMesh.get_all_groups.
DTENSOR_API std::vector<GroupPtr> get_all_groups(const DeviceMesh& mesh);

} // namespace dtensor
