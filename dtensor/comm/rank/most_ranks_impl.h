// SPDX-License-Identifier: BSD-3-Clause
// Limits for variables and options: larger numbers are errors instead of
// attempts to allocate.
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// Most ranks in a world of processes.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;
/// Most threads of one process that are ranks.
inline constexpr int64_t kMostThreadRanks = 4096;

} // namespace dtensor::detail
