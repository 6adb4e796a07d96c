// SPDX-License-Identifier: BSD-3-Clause
// Check that no two ranks use the same GPU. NCCL requires a GPU per rank, but
// its errors for a shared GPU are unclear.
#pragma once

#include <dtensor/comm/backends.h>

#include <string>

namespace dtensor::detail {

/// Claims `gpu` for this member in the store of the group. Throws ValueError if
/// another member has claimed it. `name` identifies the physical GPU: two
/// processes have the same name exactly if they use the same GPU, regardless of
/// its device index.
void claim_gpu(
    const GroupMembers& members,
    const RendezvousInfo& place,
    c10::Device gpu,
    const std::string& name);

} // namespace dtensor::detail
