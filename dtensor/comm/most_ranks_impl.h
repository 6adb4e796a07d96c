// SPDX-License-Identifier: BSD-3-Clause
// Bounds on what variables and options ask for: larger numbers are errors, not
// attempts to allocate.
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// The most ranks of a world of processes.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;
/// The most threads of a process that are ranks.
inline constexpr int64_t kMostThreadRanks = 4096;

} // namespace dtensor::detail
