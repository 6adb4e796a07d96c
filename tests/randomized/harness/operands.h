// SPDX-License-Identifier: BSD-3-Clause
// Draws the tensors for an operator. The shapes depend only on the family that
// its name belongs to.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <cstdint>
#include <string>
#include <vector>

#include "random.h"

namespace dtensor::randomized {

struct Operand {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kDouble;
};

/// Returns the tensor arguments of `op` in order, including those in lists.
/// Sizes are at most 8, or, with heads, the sizes of a model with heads of 64
/// features.
std::vector<Operand> draw_operands(
    const c10::FunctionSchema& schema,
    Random& random,
    bool has_heads = false);

/// Returns the full tensor of an operand: values in (0.1, 0.9), or small
/// integers.
at::Tensor full_operand(const Operand& operand, uint64_t seed);

/// True if the argument is a tensor or an optional tensor.
bool is_tensor(const c10::Argument& argument);
bool is_tensor_list(const c10::Argument& argument);

} // namespace dtensor::randomized
