// SPDX-License-Identifier: BSD-3-Clause
// SteppedRange: the rows of a dimension that a slice takes.
#pragma once

#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <cstdint>

namespace dtensor::detail {

/// The rows begin, begin + step, ... of a dimension, `count` in total.
///
///   SteppedRange{.begin = 1, .step = 3, .count = 4}   // rows 1, 4, 7, 10
struct SteppedRange {
  int64_t begin = 0;
  int64_t step = 1;
  int64_t count = 1;

  /// Returns the row at `position` in the range.
  int64_t row_at(int64_t position) const {
    return begin + position * step;
  }
  /// Returns the positions of the rows that lie in `rows`.
  ///
  ///   SteppedRange{1, 3, 4}.positions_in({4, 10})   // [1, 3)
  Interval positions_in(Interval rows) const {
    return {first_from(rows.begin), first_from(rows.end)};
  }

 private:
  // Returns the position of the first row that is `row` or later.
  int64_t first_from(int64_t row) const {
    const auto position = (row - begin + step - 1) / step;
    return row <= begin ? 0 : std::min(position, count);
  }
};

} // namespace dtensor::detail
