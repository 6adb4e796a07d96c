// SPDX-License-Identifier: BSD-3-Clause
// A backend for several hosts with as many members each: memory within a host,
// and between hosts a backend for each place in them.
//
// Member (h, l) is the l-th of host h. Two kinds of groups do the work: the
// members of one host, and those with one l, one of each host. A reduction is
// cut in the first and goes on in the second, so that each member sends its
// share of the bytes over the network, and every byte goes there once.
#pragma once

#include <dtensor/comm/backends.h>

namespace dtensor::detail {

/// Whether every host has as many of the members as any other, and at least
/// two.
bool is_regular(const MeetingPlace& place);

/// All members make it. `within` and `across` make the backends of the two
/// kinds of groups, and `across` one of all members besides, for what goes from
/// member to member. The place has to be regular.
GroupBackendPtr hierarchical_backend(
    GroupMembers members,
    const MeetingPlace& place,
    const MakeBackend& within,
    const MakeBackend& across);

} // namespace dtensor::detail
