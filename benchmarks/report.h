// SPDX-License-Identifier: BSD-3-Clause
// One line of JSON on stdout for each figure, as every benchmark and anchor
// prints it: {"benchmark": "all_reduce/2/4", "us": 0.81, "spread": 0.03}.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace dtensor::bench {

/// The value below which the part `q` of the sorted samples lies.
inline double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(low);
  return sorted[low] + part * (sorted[high] - sorted[low]);
}

/// Prints the median of samples in microseconds, and the range of their middle
/// half in relation to it.
inline void report(const std::string& name, std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double median = quantile(samples, 0.5);
  const double middle = quantile(samples, 0.75) - quantile(samples, 0.25);
  std::printf(
      "{\"benchmark\": \"%s\", \"us\": %.4g, \"spread\": %.3g}\n",
      name.c_str(),
      median,
      median > 0 ? middle / median : 0.0);
  std::fflush(stdout);
}

} // namespace dtensor::bench
