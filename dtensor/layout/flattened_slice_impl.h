// SPDX-License-Identifier: BSD-3-Clause
// Slices of a mesh that name flattened meshes beside dimensions:
// mesh[{"dp", "cp_tp"}].
#pragma once

#include <dtensor/layout/mesh_state_impl.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// The coordinates of this rank; of a rank outside the mesh, those of the first
/// rank.
std::vector<int64_t> point_of(const DeviceMesh& mesh);

/// The flattened mesh of that name which `state` remembers.
std::optional<FlattenedMesh> find_flattened(
    const MeshState& state,
    std::string_view name);

/// Adds `mesh` to what `state` remembers, unless its name is there.
void remember_flattened(const MeshState& state, const FlattenedMesh& mesh);

/// The slice of `mesh` along `names`, of which some are flattened meshes.
/// Communicates by the groups that exist. Throws IndexError for an unknown
/// name, ValueError for names out of order, or that share a dimension.
DeviceMesh slice_with_flattened(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names);

} // namespace dtensor::detail
