// SPDX-License-Identifier: BSD-3-Clause
// Fake backend: one rank of a world without the other ranks.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

namespace dtensor::detail {

/// Makes a backend whose collectives return at once, on any device. Results
/// have the shape that they would have if all ranks passed tensors of the same
/// shapes. Reductions return this rank's own values. Data from other ranks
/// (all_gather, broadcast, scatter, recv) are zeros.
DTENSOR_INTERNAL_API GroupBackendPtr fake_backend(GroupMembers members);

} // namespace dtensor::detail
