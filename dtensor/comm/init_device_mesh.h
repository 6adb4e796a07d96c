// SPDX-License-Identifier: BSD-3-Clause
// Meshes that can communicate: the ranks of this world arranged in dimensions.
#pragma once

#include <dtensor/comm/group.h>
#include <dtensor/layout/mesh.h>

namespace dtensor {

/// A mesh of `mesh_shape` over ranks 0, 1, ... of this world in row-major
/// order, with one group per dimension. All ranks of the world call it; ranks
/// beyond the mesh get a mesh that does not contain them.
/// Throws ValueError: an empty or non-positive shape, a mesh larger than the
/// world, names unlike the shape in number, a name twice.
/// Python: torch.distributed.init_device_mesh.
DTENSOR_API DeviceMesh init_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<std::string> mesh_dim_names = {});

/// The same over chosen global ranks (row-major).
/// Python: DeviceMesh(device_type, mesh).
DTENSOR_API DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names = {});

/// The group of this rank along one mesh dimension.
/// Throws RuntimeError on a pure mesh and on a rank outside the mesh.
/// Python: DeviceMesh.get_group.
DTENSOR_API Group& get_group(const DeviceMesh& mesh, int64_t dim = 0);
DTENSOR_API Group& get_group(const DeviceMesh& mesh, std::string_view name);

} // namespace dtensor
