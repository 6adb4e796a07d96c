// SPDX-License-Identifier: BSD-3-Clause
// Supervisor of worker processes. Distributes jobs, continues after crashes and
// hangs, and counts these as differences.
#pragma once

#include "worker.h"

#include <vector>

namespace dtensor::randomized {

struct Job {
  std::vector<Call> calls;
  Place begin;
};

/// Runs all jobs, in at most `jobs` processes at a time.
void run_jobs(
    std::vector<Job> jobs,
    size_t processes,
    const Settings& settings,
    SharedTally& tally);

} // namespace dtensor::randomized
