// SPDX-License-Identifier: BSD-3-Clause
// Helpers for intervals and lists of intervals.
#pragma once

#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// Returns the indices that both intervals have; an empty interval if there are
/// none.
inline Interval overlap(Interval a, Interval b) {
  const auto begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Returns the interval with `shift` added to its indices.
inline Interval shifted(Interval interval, int64_t shift) {
  return {interval.begin + shift, interval.end + shift};
}

/// Appends `interval`, unless it is empty. Joins it to the last interval if it
/// begins at the end of the last interval.
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

/// Appends the indices in the intervals, in order.
inline void append_indices(
    std::vector<int64_t>& indices,
    const Intervals& intervals) {
  for (const auto& interval : intervals) {
    for (auto i = interval.begin; i < interval.end; ++i) {
      indices.push_back(i);
    }
  }
}

/// Returns the indices in the intervals, in order.
inline std::vector<int64_t> indices_in(const Intervals& intervals) {
  std::vector<int64_t> indices;
  append_indices(indices, intervals);
  return indices;
}

} // namespace dtensor::detail
