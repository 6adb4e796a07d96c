// SPDX-License-Identifier: BSD-3-Clause
// Relations between meshes: the meshes that a slice, a flattened mesh or a
// concatenated mesh was derived from.
#pragma once

#include <dtensor/layout/mesh_state_impl.h>

#include <vector>

namespace dtensor::detail {

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

} // namespace dtensor::detail
