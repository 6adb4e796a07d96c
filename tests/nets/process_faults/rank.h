// SPDX-License-Identifier: BSD-3-Clause
// One process of a run.
#pragma once

#include "case.h"

namespace dtensor::process_faults {

/// What a culprit prints before it does wrong, followed by the steady clock's
/// time in ms; and a run without a culprit at its end, followed by how many
/// points a rank passes up to its last collective.
constexpr const char* kFaultAt = "fault at ";
constexpr const char* kPoints = "points ";

/// How it ends.
constexpr int kFailed = 7; // after it has printed the error
constexpr int kExited = 3;

/// Trains as the ranks of this process, whose launcher's variables are set, and
/// returns how it ends.
int run_rank(const World& world, const Case& fault);

} // namespace dtensor::process_faults
