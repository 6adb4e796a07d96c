// SPDX-License-Identifier: BSD-3-Clause
// What ranks find in their environment: the variables of torchrun.
#pragma once

#include <string>
#include <vector>

#include "options.h"

namespace launcher {

// What is the same for all ranks of a job.
struct JobFacts {
  std::string key;  // its random name
  std::string host; // where its store is
  uint16_t port = 0;
  int threads = 1; // for OMP_NUM_THREADS, unless the user has set it
};

// name=value of the launcher's own environment and those variables, for rank
// `local` of this node at its `attempt`, from 0.
std::vector<std::string> environment_of(
    const Options& options,
    const JobFacts& job,
    int attempt,
    int local);

} // namespace launcher
