// SPDX-License-Identifier: BSD-3-Clause
// The communication behind a mesh: a group along each of its dimensions.
#pragma once

#include <dtensor/comm/init_device_mesh.h>

#include <memory>
#include <vector>

namespace dtensor::detail {

class MeshGroups;

/// The ranks along `dim` through the position `mine` of a mesh.
std::vector<int64_t>
ranks_along(const DeviceMesh& mesh, size_t dim, int64_t mine);

/// Makes them. Every rank of the world calls this.
std::shared_ptr<MeshGroups> groups_of(
    const DeviceMesh& mesh,
    const MeshOptions& options = {});

/// Those of this rank, which somebody made before.
std::shared_ptr<MeshGroups> groups_of(const std::vector<GroupPtr>& given);

} // namespace dtensor::detail
