// SPDX-License-Identifier: BSD-3-Clause
// Draws operands and arguments for an operator from its schema: operands from
// the family its name belongs to, numbers and dimensions from their types.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace dtensor::property {

/// Draws the same on every platform, unlike the standard distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// In [0, n).
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

struct Operand {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kDouble;
};

/// The tensor arguments of `op`, those in lists included, in order.
std::vector<Operand> draw_operands(
    const c10::FunctionSchema& schema,
    Random& random);

/// Full tensors for the operands: values in (0.1, 0.9), small integers.
at::Tensor full_operand(const Operand& operand, uint64_t seed);

/// All arguments of `op` with those tensors; the same for the same `variant`.
torch::jit::Stack draw_arguments(
    const c10::FunctionSchema& schema,
    const std::vector<at::Tensor>& tensors,
    uint64_t variant);

} // namespace dtensor::property
