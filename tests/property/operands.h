// SPDX-License-Identifier: BSD-3-Clause
// Draws the tensors that an operator is called with: their shapes are those of
// the family that its name belongs to, and nothing else is known of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

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

/// The tensor arguments of `op`, those in lists included, in order. Sizes are
/// up to 8, or, with heads, those of a model with heads of 64 features.
std::vector<Operand> draw_operands(
    const c10::FunctionSchema& schema,
    Random& random,
    bool has_heads = false);

/// Full tensors for the operands: values in (0.1, 0.9), small integers.
at::Tensor full_operand(const Operand& operand, uint64_t seed);

/// What kind of argument it is; an optional tensor is one.
bool is_tensor(const c10::Argument& argument);
bool is_tensor_list(const c10::Argument& argument);

} // namespace dtensor::property
