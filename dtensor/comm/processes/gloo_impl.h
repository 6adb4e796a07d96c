// SPDX-License-Identifier: BSD-3-Clause
// The Gloo backend that LibTorch includes.
#pragma once

#include <dtensor/comm/backends.h>

namespace dtensor::detail {

/// Connects every pair of members. Listens on the loopback interface if all
/// members are on one host; otherwise on the interface GLOO_SOCKET_IFNAME, or
/// on the address of this host's name.
GroupBackendPtr make_gloo(GroupMembers members, const RendezvousInfo& place);

} // namespace dtensor::detail
