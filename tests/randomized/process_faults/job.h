// SPDX-License-Identifier: BSD-3-Clause
// Processes of one run, from their start until all have ended.
#pragma once

#include "case.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace dtensor::process_faults {

using Clock = std::chrono::steady_clock;

struct Ended {
  int code = 0; // 128 + n if signal n killed the process
  std::string output;
  Clock::time_point when;
};

struct JobResult {
  /// Processes by number. With a launcher, only the launcher, with the output
  /// of all processes.
  std::vector<Ended> processes;
  /// Time of the fault, as printed by the failing rank.
  Clock::time_point fault_at;
  /// True if processes did not end in time and were killed. A failing rank that
  /// hangs does not count.
  bool hung = false;
};

/// Runs a job in `folder`, which must be empty. `program` is this program, for
/// a launcher.
JobResult run_job(
    const World& world,
    const Case& fault,
    const std::filesystem::path& folder,
    const std::string& program);

} // namespace dtensor::process_faults
