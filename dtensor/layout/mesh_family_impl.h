// SPDX-License-Identifier: BSD-3-Clause
// Meshes that come of each other: slices, flattened and joined ones, and what
// they were made of.
#pragma once

#include <dtensor/layout/mesh_state_impl.h>

#include <vector>

namespace dtensor::detail {

/// The mesh itself and the living ones that it was sliced from.
std::vector<StatePtr> family(const StatePtr& state);

/// `slice` was made of `parent`.
void remember_parents(const MeshState& slice, const StatePtr& parent);

/// What `where` makes of `origin`, with groups if that has some.
DeviceMesh with_groups_of(
    const MeshState& origin,
    const DeviceMesh& pure,
    const char* where);

} // namespace dtensor::detail
