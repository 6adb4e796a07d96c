// SPDX-License-Identifier: BSD-3-Clause
// EdgePadding: the rows that padding by reflection or replication repeats.
//
//   EdgePadding p{.reflects = true, .before = 2, .size = 5};
//   p.row_of(0)            // 2: rows are 2 1 0 1 2 3 4 ...
//   p.rows_of({0, 2})      // [1, 3)
#pragma once

#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <cstdint>

namespace dtensor::detail {

/// A dimension of `size` rows with `before` rows of padding in front of them,
/// and others behind.
struct EdgePadding {
  bool reflects = false;
  int64_t before = 0;
  int64_t size = 0;

  /// Returns the row that is at `position` in the padded dimension.
  int64_t row_of(int64_t position) const {
    const auto row = position - before;
    return !reflects ? std::clamp<int64_t>(row, 0, size - 1)
        : row < 0    ? -row
        : row < size ? row
                     : 2 * (size - 1) - row;
  }
  /// Returns the range of the rows that are at `positions`.
  Interval rows_of(Interval positions) const {
    Interval rows{size, 0};
    for (auto at = positions.begin; at < positions.end; ++at) {
      rows.begin = std::min(rows.begin, row_of(at));
      rows.end = std::max(rows.end, row_of(at) + 1);
    }
    return positions.size() == 0 ? Interval{} : rows;
  }
};

} // namespace dtensor::detail
