// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/kernel_window_impl.h>

namespace dtensor::detail {
namespace {

// Divides by a positive number, and rounds down.
int64_t floor_div(int64_t a, int64_t b) {
  const auto quotient = a / b;
  return a % b < 0 ? quotient - 1 : quotient;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return -floor_div(-a, b);
}

} // namespace

int64_t KernelWindow::count(int64_t size, bool ceil_mode) const {
  const auto last_start = size + 2 * padding - reach();
  const auto steps =
      ceil_mode ? ceil_div(last_start, stride) : floor_div(last_start, stride);
  // In ceil mode, the window after the last step may start in the padding
  // behind the end.
  const bool is_behind = ceil_mode && steps * stride >= size + padding;
  return is_behind ? steps : steps + 1;
}

int64_t KernelWindow::transposed_size(int64_t windows, int64_t output_padding)
    const {
  return (windows - 1) * stride - 2 * padding + reach() + output_padding;
}

Interval KernelWindow::rows_of(Interval windows) const {
  const auto begin = windows.begin * stride - padding;
  return windows.size() == 0
      ? Interval{begin, begin}
      : Interval{begin, (windows.end - 1) * stride - padding + reach()};
}

Interval KernelWindow::aligned_rows(Interval windows) const {
  const auto first =
      std::max<int64_t>(windows.begin - ceil_div(padding, stride), 0);
  return {
      first * stride,
      windows.size() == 0 ? first * stride : rows_of(windows).end};
}

Interval KernelWindow::windows_over(Interval rows, int64_t count) const {
  // Window i covers rows from i * stride - padding on.
  const auto begin = std::max<int64_t>(
      ceil_div(rows.begin + padding - reach() + 1, stride), 0);
  const auto end =
      std::min(floor_div(rows.end - 1 + padding, stride) + 1, count);
  return rows.size() == 0 || end <= begin ? Interval{} : Interval{begin, end};
}

Interval clip(Interval range, int64_t size) {
  return overlap(range, {0, size});
}

std::vector<Interval> chunks(int64_t size, int64_t ranks, int64_t unit) {
  std::vector<Interval> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    all.push_back(chunk(size, ranks, rank, unit));
  }
  return all;
}

int64_t received_rows(
    const std::vector<Interval>& held,
    const std::vector<Interval>& needed) {
  int64_t rows = 0;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    rows += needed[rank].size() - overlap(held[rank], needed[rank]).size();
  }
  return rows;
}

} // namespace dtensor::detail
