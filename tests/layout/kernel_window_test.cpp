// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of windows for all small kernels and sizes, compared with lists of
// rows and with the shapes of LibTorch's operators.
#include <dtensor/layout/kernel_window_impl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <set>

namespace dtensor {
namespace TEST_SOURCE {

using detail::KernelWindow;

std::string describe(const KernelWindow& w, int64_t size) {
  return "kernel " + std::to_string(w.kernel) + ", stride " +
      std::to_string(w.stride) + ", padding " + std::to_string(w.padding) +
      ", dilation " + std::to_string(w.dilation) + ", size " +
      std::to_string(size);
}

// Calls `check` with all small windows that fit in all small sizes.
void for_all(const std::function<void(const KernelWindow&, int64_t)>& check) {
  for (int64_t kernel = 1; kernel <= 4; ++kernel) {
    for (int64_t stride = 1; stride <= 3; ++stride) {
      for (int64_t padding = 0; padding <= 3; ++padding) {
        for (int64_t dilation = 1; dilation <= 2; ++dilation) {
          const KernelWindow w{kernel, stride, padding, dilation};
          for (int64_t size = 1; size <= 8; ++size) {
            if (w.reach() <= size + 2 * padding) {
              SCOPED_TRACE(describe(w, size));
              check(w, size);
            }
          }
        }
      }
    }
  }
}

// Returns the range from the smallest number to the greatest.
Interval hull(const std::set<int64_t>& numbers) {
  return numbers.empty() ? Interval{}
                         : Interval{*numbers.begin(), *numbers.rbegin() + 1};
}

TEST(KernelWindow, CountsWindowsAsLibTorch) {
  for_all([](const KernelWindow& w, int64_t size) {
    const auto x = at::ones({1, 1, size});
    const auto kernel = at::ones({1, 1, w.kernel});
    const auto y =
        at::conv1d(x, kernel, {}, w.stride, w.padding, w.dilation, 1);
    EXPECT_EQ(w.count(size), y.size(2));
    if (w.padding * 2 > w.kernel) {
      return; // pooling refuses it
    }
    for (const bool ceil_mode : {false, true}) {
      const auto pooled = at::max_pool1d(
          x, {w.kernel}, {w.stride}, {w.padding}, {w.dilation}, ceil_mode);
      EXPECT_EQ(w.count(size, ceil_mode), pooled.size(2)) << ceil_mode;
    }
  });
  EXPECT_LT((KernelWindow{.kernel = 9, .stride = 2}.count(2)), 1);
}

TEST(KernelWindow, HasTheSizesOfTransposedConvolutions) {
  for_all([](const KernelWindow& w, int64_t windows) {
    for (int64_t output_padding = 0; output_padding < w.stride;
         ++output_padding) {
      const auto size = w.transposed_size(windows, output_padding);
      if (size < 1) {
        continue;
      }
      const auto y = at::conv_transpose1d(
          at::ones({1, 1, windows}),
          at::ones({1, 1, w.kernel}),
          {},
          {w.stride},
          {w.padding},
          {output_padding},
          1,
          {w.dilation});
      EXPECT_EQ(size, y.size(2));
    }
  });
}

TEST(KernelWindow, FindsTheRowsOfWindows) {
  for_all([](const KernelWindow& w, int64_t size) {
    for (int64_t begin = 0; begin < w.count(size); ++begin) {
      std::set<int64_t> rows;
      for (int64_t end = begin + 1; end <= w.count(size); ++end) {
        for (int64_t k = 0; k < w.kernel; ++k) {
          rows.insert((end - 1) * w.stride - w.padding + k * w.dilation);
        }
        EXPECT_EQ(w.rows_of({begin, end}), hull(rows));
      }
      EXPECT_EQ(w.rows_of({begin, begin}).size(), 0);
    }
  });
}

// Sums of windows over the aligned rows equal the sums over all rows.
TEST(KernelWindow, AlignsRowsWithPadding) {
  for_all([](const KernelWindow& w, int64_t size) {
    const auto sums_of = [&](const at::Tensor& rows) {
      const auto kernel = at::ones({1, 1, w.kernel}, at::kLong);
      return at::conv1d(
                 rows.view({1, 1, -1}).to(at::kDouble),
                 kernel.to(at::kDouble),
                 {},
                 w.stride,
                 w.padding,
                 w.dilation,
                 1)
          .view({-1});
    };
    const auto rows = at::arange(1, size + 1);
    const auto sums = sums_of(rows);
    for (int64_t begin = 0; begin < sums.size(0); ++begin) {
      for (int64_t end = begin + 1; end <= sums.size(0); ++end) {
        const Interval windows{begin, end};
        const auto part = detail::clip(w.aligned_rows(windows), size);
        if (part.size() == 0) {
          continue; // padding alone, which no operator pools
        }
        const auto local = sums_of(rows.slice(0, part.begin, part.end));
        EXPECT_TRUE(at::equal(
            local.narrow(0, w.skipped(windows), windows.size()),
            sums.slice(0, begin, end)))
            << begin << " to " << end;
      }
      EXPECT_EQ(w.aligned_rows({begin, begin}).size(), 0);
    }
  });
}

TEST(KernelWindow, FindsTheWindowsOverRows) {
  for_all([](const KernelWindow& w, int64_t size) {
    const auto count = w.count(size);
    for (int64_t begin = 0; begin <= size; ++begin) {
      for (int64_t end = begin; end <= size; ++end) {
        std::set<int64_t> windows;
        for (int64_t i = 0; i < count; ++i) {
          const auto first = i * w.stride - w.padding;
          for (auto row = first; row < first + w.reach(); ++row) {
            if (begin <= row && row < end) {
              windows.insert(i);
            }
          }
        }
        EXPECT_EQ(w.windows_over({begin, end}, count), hull(windows))
            << begin << " to " << end;
      }
    }
  });
}

TEST(KernelWindow, CountsTheRowsThatRanksReceive) {
  const auto held = detail::chunks(8, 3);
  EXPECT_EQ(held, (std::vector<Interval>{{0, 3}, {3, 6}, {6, 8}}));
  EXPECT_EQ(detail::received_rows(held, held), 0);
  EXPECT_EQ(detail::received_rows(held, {{0, 4}, {2, 7}, {5, 8}}), 4);
  EXPECT_EQ(detail::received_rows(held, {{3, 6}, {0, 0}, {0, 8}}), 9);
  EXPECT_EQ(detail::clip({-2, 9}, 8), (Interval{0, 8}));
  EXPECT_EQ(detail::clip({-2, -1}, 8).size(), 0);
  EXPECT_EQ(detail::clip({9, 12}, 8).size(), 0);
  EXPECT_EQ(detail::overlap({0, 3}, {2, 8}), (Interval{2, 3}));
  EXPECT_EQ(detail::overlap({0, 3}, {5, 8}).size(), 0);
}

} // namespace TEST_SOURCE
} // namespace dtensor
