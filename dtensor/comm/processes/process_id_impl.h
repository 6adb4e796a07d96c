// SPDX-License-Identifier: BSD-3-Clause
// Identification of a rank's process on this host, and checks that the process
// still runs and was not forked.
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// Process identifier that stays unique when the system reuses the pid.
struct ProcessId {
  int64_t pid = 0;
  /// Start time, in clock ticks since the host started.
  int64_t started = 0;
};

ProcessId this_process();

/// Returns true if the process has ended, even if its parent has not reaped it.
bool has_ended(const ProcessId& process);

/// Returns the number of forks since the process that called fork_count()
/// first: 0 there, and larger in its descendants. A child has none of its
/// parent's threads and connections. Objects that need threads or connections
/// compare the count with its value at their construction.
int64_t fork_count();

} // namespace dtensor::detail
