// SPDX-License-Identifier: BSD-3-Clause
// The NCCL of a LibTorch for CUDA, as a backend. Builds for another LibTorch
// have no_nccl.cpp in place of nccl.cpp.
#pragma once

#include <dtensor/comm/backends.h>

namespace dtensor::detail {

bool has_nccl();

/// Communicates from the GPU that is current now, on streams of its own: what
/// it gives is ready on the stream that is current then, and the host waits for
/// nothing. Throws ValueError where there is no GPU, or it is another member's.
GroupBackendPtr make_nccl(GroupMembers members, const MeetingPlace& place);

} // namespace dtensor::detail
