// SPDX-License-Identifier: BSD-3-Clause
// How lists of intervals are built.
#pragma once

#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

/// Appends `interval`, unless it is empty; where it begins at the end of the
/// last one, the two become one.
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
