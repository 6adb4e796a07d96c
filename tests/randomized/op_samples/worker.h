// SPDX-License-Identifier: BSD-3-Clause
// Worker process that tries calls on all meshes. It is a separate process
// because a call may crash. It ends itself if ranks no longer make the same
// calls.
#pragma once

#include "call.h"
#include "tally.h"

#include <set>

namespace dtensor::randomized {

struct Settings {
  uint64_t seed = 1;
  double fraction = 1; // of all combinations
  /// Brief mode: on mesh (2) replicated and one other layout, and one layout on
  /// another mesh. Calls with twins also run with a partial sum on (2) and on
  /// (3).
  bool brief = false;
  size_t random_layouts = 4;     // per call and mesh
  std::set<std::string> pending; // operators with known differences
  bool verbose = false;          // also prints refused calls
};

/// Returns the meshes in the order of trials.
const std::vector<std::vector<int64_t>>& meshes();

/// Tries `calls` from `begin` on, and counts the results in `tally`.
void work(
    std::vector<Call> calls,
    const Place& begin,
    const Settings& settings,
    SharedTally& tally,
    SharedTally::Worker& self);

/// Counts a difference, and prints a line.
void report_different(
    const Call& call,
    const std::string& where,
    const std::string& why,
    const Settings& settings,
    SharedTally& tally);

} // namespace dtensor::randomized
