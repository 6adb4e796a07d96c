// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/built_in_backends_impl.h>

namespace dtensor::detail {

bool has_nccl() {
  return false;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as in nccl.cpp.
GroupBackendPtr make_nccl(GroupMembers /*members*/, const RendezvousInfo&) {
  TORCH_INTERNAL_ASSERT(false, "choose_backends() rejects nccl in this build");
}

} // namespace dtensor::detail
