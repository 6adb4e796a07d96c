// SPDX-License-Identifier: BSD-3-Clause
// KernelWindow: arithmetic of a kernel that moves along one spatial dimension,
// and of the rows that a rank needs for its rows of the result.
//
//   KernelWindow w{.kernel = 3, .padding = 1};
//   w.count(8)           // 8 windows in 8 rows
//   w.rows_of({4, 8})    // [3, 9): windows 4 to 7 cover rows 3 to 8
//   clip({3, 9}, 8)      // [3, 8): row 8 is padding
#pragma once

#include <dtensor/layout/intervals_impl.h>
#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// Window i covers rows i * stride - padding + k * dilation, for each k below
/// `kernel`. Rows before 0 and behind the last row are padding.
struct KernelWindow {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;

  /// Returns the number of rows from the first row of a window to its last.
  int64_t reach() const {
    return dilation * (kernel - 1) + 1;
  }
  /// Returns the number of windows in `size` rows; not positive if the kernel
  /// does not fit. In ceil mode, the last window may extend beyond the end, but
  /// starts inside the rows or the padding before them.
  int64_t count(int64_t size, bool ceil_mode = false) const;
  /// Returns the number of rows that `windows` windows of a transposed
  /// convolution make.
  int64_t transposed_size(int64_t windows, int64_t output_padding) const;

  /// Returns the rows from the first row of `windows` to the last, padding
  /// included; an empty range for no windows.
  Interval rows_of(Interval windows) const;
  /// Returns the rows for an operator that pads them itself and computes
  /// `windows` after skipped() other windows. The range may end behind the last
  /// row.
  ///
  ///   KernelWindow{.kernel = 3, .padding = 1}.aligned_rows({4, 8}) // [3, 9)
  ///   // An operator on these rows begins with window 3, which lacks row 2.
  Interval aligned_rows(Interval windows) const;
  /// Returns the number of windows to skip in front of `windows`.
  int64_t skipped(Interval windows) const {
    return windows.begin - aligned_rows(windows).begin / stride;
  }
  /// Returns the windows, out of `count`, that cover some of `rows`; an empty
  /// range if there are none.
  Interval windows_over(Interval rows, int64_t count) const;
};

/// Returns element `i` of an argument that has one element for each spatial
/// dimension, or a single element for all of them.
inline int64_t element_for(const std::vector<int64_t>& list, size_t i) {
  return list.size() == 1 ? list[0] : list.at(i);
}

/// Returns such an argument as a list with an element for each of `space`
/// dimensions.
inline std::vector<int64_t> elements_for(
    const std::vector<int64_t>& list,
    int64_t space) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < space; ++i) {
    all.push_back(element_for(list, static_cast<size_t>(i)));
  }
  return all;
}

/// Returns the rows of `range` in [0, size).
Interval clip(Interval range, int64_t size);

/// Returns torch.chunk's ranges of a dimension, one for each rank.
std::vector<Interval> chunks(int64_t size, int64_t ranks, int64_t unit = 1);

/// Returns the number of rows that the ranks receive, in total, if each rank
/// has the rows `held` and needs the rows `needed`.
int64_t received_rows(
    const std::vector<Interval>& held,
    const std::vector<Interval>& needed);

/// Rows that padding by reflection or replication repeats.
///
///   EdgePadding p{.reflects = true, .before = 2, .size = 5};
///   p.row_of(0)            // 2: rows are 2 1 0 1 2 3 4 ...
///   p.rows_of({0, 2})      // [1, 3)
///
/// A dimension has `size` rows, `before` rows of padding in front of them, and
/// other padding behind.
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
