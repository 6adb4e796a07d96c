// SPDX-License-Identifier: BSD-3-Clause
// Check that no two ranks use one GPU. NCCL requires a GPU per rank and reports
// violations poorly.
#pragma once

#include <dtensor/comm/backends.h>

#include <string>

namespace dtensor::detail {

/// Claims `gpu` for this member in the store of the group. Throws ValueError if
/// another member has claimed it. `name` identifies the physical GPU: equal in
/// two processes exactly if they see the same GPU, whatever its device index
/// there.
void claim_gpu(
    const GroupMembers& members,
    const RendezvousInfo& place,
    c10::Device gpu,
    const std::string& name);

} // namespace dtensor::detail
