// SPDX-License-Identifier: BSD-3-Clause
// Meshes derived from a mesh: slices, flattened meshes and concatenations.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/mesh_state_impl.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Returns the name of dimension `dim`, which counts from the front; the number
/// if the dimensions are unnamed.
std::string dim_name(const DeviceMesh& mesh, size_t dim);

// Relations between meshes: the meshes that a slice, a flattened mesh or a
// concatenated mesh was derived from.

/// Returns the mesh itself and the living meshes that it was sliced from.
std::vector<StatePtr> family(const StatePtr& state);

/// Records that `slice` was derived from `parent`.
void remember_parents(const MeshState& slice, const StatePtr& parent);

/// Returns `pure`, with new process groups if `origin` has process groups.
/// `where` begins error messages.
DeviceMesh with_groups_of(
    const MeshState& origin,
    const DeviceMesh& pure,
    const char* where);

// Slices that name flattened meshes together with dimensions:
// mesh[{"dp", "cp_tp"}].

/// Returns the coordinate of this rank. On a rank outside the mesh: the
/// coordinate of the first rank.
std::vector<int64_t> point_of(const DeviceMesh& mesh);

/// Returns the flattened mesh called `name` that `state` remembers, if any.
std::optional<FlattenedMesh> find_flattened(
    const MeshState& state,
    std::string_view name);

/// Adds `mesh` to the flattened meshes of `state`, unless `state` has a
/// flattened mesh of this name.
void remember_flattened(const MeshState& state, const FlattenedMesh& mesh);

/// Returns the slice of `mesh` along `names`, some of them names of flattened
/// meshes. The slice communicates on existing groups. Throws IndexError for an
/// unknown name, ValueError for names out of order or names that share a
/// dimension.
DeviceMesh slice_with_flattened(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names);

} // namespace dtensor::detail
