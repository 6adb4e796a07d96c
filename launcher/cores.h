// SPDX-License-Identifier: BSD-3-Clause
// Distribution of a host's cores among its ranks.
//
// The CPUs that this process may use are ordered by socket and core, and
// divided into contiguous slices of full cores. This keeps a rank's memory and
// threads close together. Ordering by CPU number is not enough, because
// hyperthreads of one core, or cores of one socket, need not have consecutive
// numbers.
#pragma once

#include <vector>

namespace launcher {

struct CoreShares {
  // CPUs of each rank. Empty if there are more ranks than CPUs.
  std::vector<std::vector<int>> cpus;
  // Cores per rank, at least one. The number is equal for all ranks, so that
  // their sums add in the same order.
  int threads = 1;
};

CoreShares share_cores(int ranks);

} // namespace launcher
