// SPDX-License-Identifier: BSD-3-Clause
// Hierarchical backend for several hosts with equally many members each. The
// backend combines a backend within each host with backends across hosts.
//
// Member (h, l) is the l-th member on host h. There are two kinds of groups:
// all members on one host (same h), and all members with the same l, one per
// host. A reduction is reduce-scattered within the host, reduced across hosts,
// and gathered within the host again. Each member thus sends only its slice
// over the network, and every byte crosses the network once.
#pragma once

#include <dtensor/comm/backends.h>

namespace dtensor::detail {

/// Returns true if every host has the same number of members, and at least two.
bool is_regular(const RendezvousInfo& place);

/// Creates the hierarchical backend. All members must call this function.
/// `within` and `across` create the backends of the two kinds of groups.
/// `across` also creates a backend of all members, for point-to-point messages
/// and all_to_all. Requires is_regular(place).
GroupBackendPtr hierarchical_backend(
    GroupMembers members,
    const RendezvousInfo& place,
    const MakeBackend& within,
    const MakeBackend& across);

} // namespace dtensor::detail
