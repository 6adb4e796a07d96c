// SPDX-License-Identifier: BSD-3-Clause
// Which process of this host a rank is, and whether it still runs.
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// A process, told from a later one that got the same number.
struct ProcessId {
  int64_t pid = 0;
  /// In clock ticks since the host started.
  int64_t started = 0;
};

ProcessId this_process();

/// Whether it runs no more, also where its parent has yet to notice.
bool has_ended(const ProcessId& process);

} // namespace dtensor::detail
