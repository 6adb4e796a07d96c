// SPDX-License-Identifier: BSD-3-Clause
// The NCCL backend of LibTorch builds with CUDA. Other builds compile
// no_nccl.cpp instead of nccl.cpp.
#pragma once

#include <dtensor/comm/backends.h>

namespace dtensor::detail {

bool has_nccl();

/// Creates an NCCL backend on the current GPU, with its own streams. Results
/// are ready on the caller's current stream; the host does not wait. Throws
/// ValueError if there is no GPU, or if another member uses the same GPU.
GroupBackendPtr make_nccl(GroupMembers members, const RendezvousInfo& place);

} // namespace dtensor::detail
