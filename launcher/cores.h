// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a host share its cores.
//
// The CPUs that this process may use, ordered by socket and core, are cut in
// contiguous slices of whole cores, so that a rank's memory and its threads
// stay near each other. Numbers of CPUs alone would not do: hyperthreads of
// one core, or the cores of one socket, need not be neighbours there.
#pragma once

#include <vector>

namespace launcher {

struct CoreShares {
  // The CPUs of each rank. Empty where there are more ranks than CPUs.
  std::vector<std::vector<int>> cpus;
  // Cores of a rank, at least one. The same for all, so that they add in the
  // same order.
  int threads = 1;
};

CoreShares share_cores(int ranks);

} // namespace launcher
