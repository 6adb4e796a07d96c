// SPDX-License-Identifier: BSD-3-Clause
// One process of a run.
#pragma once

#include "case.h"

namespace dtensor::process_faults {

/// Text that the failing rank prints before its fault, followed by the steady
/// clock's time in ms. A run without a fault prints kPoints at its end,
/// followed by the number of points up to the last collective.
constexpr const char* kFaultAt = "fault at ";
constexpr const char* kPoints = "points ";

/// Exit codes.
constexpr int kFailed = 7; // after printing the error
constexpr int kExited = 3;

/// Trains as the ranks of this process and returns its exit code. The
/// launcher's variables must be set.
int run_rank(const World& world, const Case& fault);

} // namespace dtensor::process_faults
