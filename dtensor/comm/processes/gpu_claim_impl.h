// SPDX-License-Identifier: BSD-3-Clause
// NCCL wants a GPU for each rank, and says little where two have taken one.
#pragma once

#include <dtensor/comm/backends.h>

#include <string>

namespace dtensor::detail {

/// Tells the members that this one has a GPU. Throws ValueError if another one
/// has it. `name` is alike for two processes that see one GPU, whatever its
/// number there, and for no others.
DTENSOR_API void claim_gpu(
    const GroupMembers& members,
    const MeetingPlace& place,
    c10::Device gpu,
    const std::string& name);

} // namespace dtensor::detail
