// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace dtensor::randomized {

/// Random numbers that are equal on every platform, unlike the standard
/// distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// Returns a number in [0, n).
  int64_t below(int64_t n) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n));
  }
  bool chance(int64_t percent) {
    return below(100) < percent;
  }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(
        below(static_cast<int64_t>(values.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

} // namespace dtensor::randomized
