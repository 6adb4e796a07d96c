// SPDX-License-Identifier: BSD-3-Clause
// Identification of a rank's process on this host, and a check that the process
// still runs.
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

} // namespace dtensor::detail
