// SPDX-License-Identifier: BSD-3-Clause
// Slices of a mesh that name flattened meshes together with dimensions:
// mesh[{"dp", "cp_tp"}].
#pragma once

#include <dtensor/layout/mesh_state_impl.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Returns the coordinate of this rank. On a rank outside the mesh: the
/// coordinate of the first rank.
std::vector<int64_t> point_of(const DeviceMesh& mesh);

/// Returns the flattened mesh called `name` that `state` remembers, if any.
std::optional<FlattenedMesh> find_flattened(
    const MeshState& state,
    std::string_view name);

/// Adds `mesh` to the flattened meshes of `state`, unless its name exists
/// there.
void remember_flattened(const MeshState& state, const FlattenedMesh& mesh);

/// Returns the slice of `mesh` along `names`, some of them names of flattened
/// meshes. The slice communicates on existing groups. Throws IndexError for an
/// unknown name, ValueError for names out of order or names that share a
/// dimension.
DeviceMesh slice_with_flattened(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names);

} // namespace dtensor::detail
