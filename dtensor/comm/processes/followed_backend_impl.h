// SPDX-License-Identifier: BSD-3-Clause
// A backend whose collectives are recorded, and whose errors say which rank is
// the cause.
#pragma once

#include <dtensor/comm/fork_count_impl.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/processes/flight_record_impl.h>
#include <dtensor/comm/processes/peers_impl.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace dtensor::detail {

/// What a rank knows of itself and the others.
struct Following {
  std::shared_ptr<Peers> peers;
  std::shared_ptr<FlightRecord> record;
  /// fork_count() in the process that is the rank.
  int64_t forks = fork_count();
};

/// `backend`, but that each collective is noted in the record, and that a
/// RuntimeError out of one tells, as RuntimeError, the collective's number,
/// what became of the other members, and where the record is.
GroupBackendPtr followed(GroupBackendPtr backend, Following following);

/// In a handler of what has kept members from making their backend: the same
/// without a number.
[[noreturn]] void explain_failed_meeting(
    const Following& following,
    const std::vector<int64_t>& ranks);

} // namespace dtensor::detail
