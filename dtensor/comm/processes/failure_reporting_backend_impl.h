// SPDX-License-Identifier: BSD-3-Clause
// A backend layer that records collectives. Its errors report which rank caused
// a failure.
#pragma once

#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/processes/flight_record_impl.h>
#include <dtensor/comm/processes/peers_impl.h>
#include <dtensor/comm/processes/process_id_impl.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace dtensor::detail {

/// Failure reporting state of a rank: its peers and its flight record.
struct FailureContext {
  std::shared_ptr<Peers> peers;
  std::shared_ptr<FlightRecord> record;
  /// Value of fork_count() in the rank's process.
  int64_t forks = fork_count();
};

/// Wraps `backend` so that each collective is recorded. A RuntimeError from a
/// collective is rethrown as a RuntimeError with the collective's number, the
/// state of the other members, and the path of the flight record.
GroupBackendPtr with_failure_reports(
    GroupBackendPtr backend,
    FailureContext following);

/// Rethrows the error that kept members from creating their backend, with the
/// state of the other members. Call this function while the error is being
/// handled.
[[noreturn]] void rethrow_setup_error(
    const FailureContext& following,
    const std::vector<int64_t>& ranks);

} // namespace dtensor::detail
