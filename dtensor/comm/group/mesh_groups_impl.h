// SPDX-License-Identifier: BSD-3-Clause
// Communication of a mesh: one group along each of its dimensions.
#pragma once

#include <dtensor/comm/init_device_mesh.h>

#include <memory>
#include <vector>

namespace dtensor::detail {

class MeshGroups;

/// Returns the ranks along `dim` through position `mine` of a mesh.
std::vector<int64_t>
ranks_along(const DeviceMesh& mesh, size_t dim, int64_t mine);

/// Makes the groups of a mesh. Every rank of the world must call it.
std::shared_ptr<MeshGroups> groups_of(
    const DeviceMesh& mesh,
    const MeshOptions& options = {});

/// Wraps existing groups of this rank.
std::shared_ptr<MeshGroups> groups_of(const std::vector<GroupPtr>& given);

/// Returns the modelled cost along a mesh dimension, equal on all ranks. The
/// default cost on a pure mesh.
LinkCost link_cost(const DeviceMesh& mesh, int64_t dim);

/// True if joint_group() can join these two mesh dimensions: the world made
/// their groups, with equal options. The result is equal on all ranks. Always
/// true on a pure mesh.
bool can_join(const DeviceMesh& mesh, int64_t a, int64_t b);

/// Returns this rank's group over one or several mesh dimensions, which must be
/// in mesh order. A group over several dimensions is made on first use, by its
/// members alone, and cached. Ranks outside the group need not call this
/// function.
Group& joint_group(const DeviceMesh& mesh, c10::ArrayRef<int64_t> dims);

} // namespace dtensor::detail
