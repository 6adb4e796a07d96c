// SPDX-License-Identifier: BSD-3-Clause
// The Gloo that LibTorch has inside, as a backend.
#pragma once

#include <dtensor/comm/backends.h>

namespace dtensor::detail {

/// Connects each member with each other one. Between processes of one host it
/// listens on the loopback interface alone; else on that of
/// GLOO_SOCKET_IFNAME, or where this host's name points to.
GroupBackendPtr make_gloo(GroupMembers members, const MeetingPlace& place);

} // namespace dtensor::detail
