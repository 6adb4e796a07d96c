// SPDX-License-Identifier: BSD-3-Clause
// A backend that talks to nobody: one rank of many whose others do not exist.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

namespace dtensor::detail {

/// Collectives return at once, on any device, with results of the shape that
/// they have when all ranks give tensors of the same shapes. Reductions return
/// this rank's own values; all_gather, and what another rank would have sent
/// from its own tensors (broadcast, scatter, recv), zeros.
DTENSOR_API GroupBackendPtr fake_backend(GroupMembers members);

} // namespace dtensor::detail
