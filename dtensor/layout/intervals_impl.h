// SPDX-License-Identifier: BSD-3-Clause
// A helper that builds lists of intervals.
#pragma once

#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

/// Appends `interval`, unless it is empty. Joins it to the last interval if it
/// begins at the last one's end.
///
///   {[0, 2)} and [2, 4)   // {[0, 4)}
///   {[0, 2)} and [3, 4)   // {[0, 2), [3, 4)}
inline void append_joined(Intervals& list, Interval interval) {
  if (interval.size() == 0) {
    return;
  }
  if (!list.empty() && list.back().end == interval.begin) {
    list.back().end = interval.end;
  } else {
    list.push_back(interval);
  }
}

} // namespace dtensor::detail
