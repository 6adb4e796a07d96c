// SPDX-License-Identifier: BSD-3-Clause
// Limits for variables and options. A number above its limit is an error
// instead of an attempt to allocate.
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// Maximum number of ranks in a world of processes.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;
/// Maximum number of threads of one process that are ranks.
inline constexpr int64_t kMostThreadRanks = 4096;

} // namespace dtensor::detail
