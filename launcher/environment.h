// SPDX-License-Identifier: BSD-3-Clause
// Environment of the ranks: the variables that torchrun sets.
#pragma once

#include <string>
#include <vector>

#include "options.h"

namespace launcher {

// Values shared by all ranks of a job.
struct JobFacts {
  std::string key;  // random name of the job
  std::string host; // host of the store
  uint16_t port = 0;
  int threads = 1; // OMP_NUM_THREADS, unless set by the user
};

// Returns the environment, as name=value strings, of rank `local` of this node:
// the launcher's own environment and torchrun's variables. `attempt` counts
// from 0.
std::vector<std::string> environment_of(
    const Options& options,
    const JobFacts& job,
    int attempt,
    int local);

} // namespace launcher
