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

} // namespace dtensor::detail
