// SPDX-License-Identifier: BSD-3-Clause
// Operators with operands for testing::expect_same_as_plain(), and further
// helpers for tests of operators.
#pragma once

#include "operands.h"

#include <dtensor/testing/same_as_plain.h>
#include <gtest/gtest.h>

#include <functional>

namespace dtensor::testing {

using Tensors = std::vector<at::Tensor>;

/// An operator with operands. Each operand has a list of placements to try on a
/// mesh dimension. Operands that require gradients are leaves.
struct Oracle {
  std::string name;
  Tensors operands;
  std::vector<Placements> choices;
  std::function<at::Tensor(const Tensors&)> fn;
  double tolerance = 1e-9;
};

inline void expect_same_as_plain(const Oracle& o, int64_t count = 16) {
  SCOPED_TRACE(o.name);
  SameAsPlainOptions options;
  options.placements = o.choices;
  options.layouts = count;
  options.rtol = options.atol = o.tolerance;
  EXPECT_NO_THROW(expect_same_as_plain(
      [&](const Tensors& operands) { return Tensors{o.fn(operands)}; },
      o.operands,
      options));
}

/// Counts the collectives of this rank during its lifetime, by kind.
class Collectives : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    text_ += (text_.empty() ? "" : ", ") + std::string(to_string(event.kind)) +
        " " + std::to_string(event.payload_bytes);
  }
  /// Returns kinds and bytes in order, and resets them: "all_reduce 24,
  /// all_gather 8".
  std::string take() {
    return std::exchange(text_, "");
  }

 private:
  std::string text_;
  CommObserverGuard guard_{*this};
};

/// Returns uniform numbers in (-1, 1) that require a gradient.
inline at::Tensor variable(at::IntArrayRef sizes, uint64_t seed) {
  return ((uniform(sizes, seed) - 0.5) * 2.5).requires_grad_(true);
}

} // namespace dtensor::testing
