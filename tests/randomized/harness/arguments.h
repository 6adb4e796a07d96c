// SPDX-License-Identifier: BSD-3-Clause
// Draws the arguments of an operator from its schema: numbers and dimensions
// according to their types and names.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "operands.h"

namespace dtensor::randomized {

/// Returns all arguments of `op`, including these tensors. Equal `variant`s
/// give equal arguments.
torch::jit::Stack draw_arguments(
    const c10::FunctionSchema& schema,
    const std::vector<at::Tensor>& tensors,
    uint64_t variant);

} // namespace dtensor::randomized
