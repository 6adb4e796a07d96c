// SPDX-License-Identifier: BSD-3-Clause
// Tries some calls on all meshes, in a process of its own: it may crash, and
// ends itself where ranks fall out of step.
#pragma once

#include "call.h"
#include "tally.h"

#include <set>

namespace dtensor::nets {

struct Settings {
  uint64_t seed = 1;
  double fraction = 1; // of all combinations
  /// On (2) replicated and one other layout, and a layout on another mesh; with
  /// twins a partial sum on (2) and on (3).
  bool brief = false;
  size_t random_layouts = 4;     // of a call on a mesh
  std::set<std::string> pending; // operators known to differ
  bool verbose = false;          // also prints what was refused
};

/// The meshes in the order in which they are tried.
const std::vector<std::vector<int64_t>>& meshes();

/// Tries `calls` from `begin` on; tells `tally` how it went.
void work(
    std::vector<Call> calls,
    const Place& begin,
    const Settings& settings,
    Tally& tally,
    Tally::Worker& self);

/// Counts it, and prints a line.
void report_different(
    const Call& call,
    const std::string& where,
    const std::string& why,
    const Settings& settings,
    Tally& tally);

} // namespace dtensor::nets
