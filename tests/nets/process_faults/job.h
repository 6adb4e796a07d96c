// SPDX-License-Identifier: BSD-3-Clause
// The processes of one run, from their start until all have ended.
#pragma once

#include "case.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace dtensor::process_faults {

using Clock = std::chrono::steady_clock;

struct Ended {
  int code = 0; // 128 + n if signal n killed it
  std::string output;
  Clock::time_point when;
};

struct Outcome {
  /// By their number; of a launcher, itself alone, with what all have printed.
  std::vector<Ended> processes;
  /// When the culprit did wrong, by what it printed.
  Clock::time_point fault_at;
  /// What had not ended in time, and was killed; the culprit that hangs is not
  /// waited for.
  bool hung = false;
};

/// Runs a job in `folder`, which is to be empty. `program` is this one, which a
/// launcher starts.
Outcome run_job(
    const World& world,
    const Case& fault,
    const std::filesystem::path& folder,
    const std::string& program);

} // namespace dtensor::process_faults
