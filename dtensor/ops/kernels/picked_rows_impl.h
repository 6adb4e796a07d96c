// SPDX-License-Identifier: BSD-3-Clause
// Rows of a sharded dimension that every rank picks from its own shard. The
// other rows are zeros, so the result is a sum over ranks.
#pragma once

#include <dtensor/ops/strategy.h>
#include <torch/library.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

struct OpInfo;

/// Returns true if ranks can add zeros to numbers of this dtype.
bool can_pick(at::ScalarType dtype);

/// Computes select() of a sharded dimension.
void pick_row(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack);

/// Computes the gradient of a view that picked rows, if its node has the layout
/// of the viewed tensor: every rank writes the rows of its shard.
/// returns_rows() is true for these calls.
void return_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
bool returns_rows(c10::ArrayRef<c10::IValue> args);

/// Returns the kernel above autograd of an operator that may pick rows. It
/// calls LibTorch's own kernel and gives the layout of the viewed tensor to its
/// node. Empty for other operators.
std::optional<torch::CppFunction> picking_kernel(const OpInfo& info);

} // namespace dtensor::detail
