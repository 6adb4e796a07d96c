// SPDX-License-Identifier: BSD-3-Clause
// Meshes that can communicate: the ranks of this world arranged in dimensions.
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
  /// What is said of the groups of single dimensions, by name, or by number
  /// ("0") where they have none: {{"tp", {.backend = "gloo"}}}.
  std::map<std::string, GroupOptions> backend_override = {};
};

/// A mesh of `mesh_shape` over ranks 0, 1, ... of this world in row-major
/// order, with one group per dimension. All ranks of the world call it; ranks
/// beyond the mesh get a mesh that does not contain them.
/// Throws ValueError: an empty or non-positive shape, a mesh larger than the
/// world, names unlike the shape in number, a name twice, an override for a
/// dimension that is not there.
/// Python: torch.distributed.init_device_mesh.
DTENSOR_API DeviceMesh init_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<std::string> mesh_dim_names = {},
    const MeshOptions& options = {});

/// The same over chosen global ranks (row-major).
/// Python: DeviceMesh(device_type, mesh).
DTENSOR_API DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names = {},
    const MeshOptions& options = {});

/// The same over an integer tensor of global ranks, which has the mesh's shape.
DTENSOR_API DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    const at::Tensor& ranks,
    std::vector<std::string> mesh_dim_names = {},
    const MeshOptions& options = {});

/// A mesh of one dimension over a group's ranks, which communicates by that
/// very group. Python: DeviceMesh.from_group.
DTENSOR_API DeviceMesh from_group(
    const GroupPtr& group,
    c10::DeviceType device_type,
    std::vector<std::string> mesh_dim_names = {});

/// A mesh of `mesh_shape` over global `ranks` (row-major), which communicates
/// along dimension d by groups[d]: that of this rank, whose members are the
/// mesh's ranks along d in order. Throws ValueError for other groups.
DTENSOR_API DeviceMesh from_group(
    const std::vector<GroupPtr>& groups,
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names = {});

/// The group of this rank along one mesh dimension, which may be left out on a
/// 1-D mesh only.
/// Throws RuntimeError on a pure mesh and on a rank outside the mesh.
/// Python: DeviceMesh.get_group.
DTENSOR_API Group& get_group(const DeviceMesh& mesh);
DTENSOR_API Group& get_group(const DeviceMesh& mesh, int64_t dim);
DTENSOR_API Group& get_group(const DeviceMesh& mesh, std::string_view name);

/// Those along all dimensions. Python: DeviceMesh.get_all_groups.
DTENSOR_API std::vector<GroupPtr> get_all_groups(const DeviceMesh& mesh);

} // namespace dtensor
