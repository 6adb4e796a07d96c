// SPDX-License-Identifier: BSD-3-Clause
// Strategies of operators that compute each element of the result from the
// corresponding elements of the (broadcast) operands.
#pragma once

#include <dtensor/ops/strategy.h>

#include <vector>

namespace dtensor::detail {

/// Effect of an operator on the order of terms.
enum class Order : uint8_t {
  kAny,      // it picks or maps each number separately
  kShifted,  // it adds the same number to all; not for integers, which would
             // wrap
  kReversed, // it makes the greatest the least; not for integers
};

/// Operands that may be Partial at the same time, while the others are
/// replicated. The result is then Partial.
struct PartialWays {
  std::vector<ReduceOp> ops;
  std::vector<std::vector<size_t>> operands;
  Order order = Order::kAny;
};

// Functions instead of constants, because rules are registered before global
// objects are constructed.

/// Returns the reductions that linear operators preserve.
inline std::vector<ReduceOp> sum_ops() {
  return {ReduceOp::kSum, ReduceOp::kAvg};
}
/// Returns the reductions that non-decreasing operators preserve.
inline std::vector<ReduceOp> order_ops() {
  return {ReduceOp::kMax, ReduceOp::kMin};
}
/// Returns the reductions that are preserved by operators that pick elements. A
/// replicated operand can be converted to each of them.
inline std::vector<ReduceOp> select_ops() {
  return {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin};
}

/// Returns all reductions: operators that only move elements preserve them.
inline std::vector<ReduceOp> all_ops() {
  return {
      ReduceOp::kSum,
      ReduceOp::kAvg,
      ReduceOp::kProduct,
      ReduceOp::kMin,
      ReduceOp::kMax,
      ReduceOp::kBand,
      ReduceOp::kBor,
      ReduceOp::kBxor};
}

/// Returns the placement of an operand of `sizes` when dimension `dim` of a
/// result of `out_sizes` is sharded: sharded along the corresponding dimension,
/// or replicated if the operand is broadcast along it.
Placement operand_shard(SizesRef sizes, SizesRef out_sizes, int64_t dim);

/// Returns the rule of a pointwise operator: every dimension of the result may
/// be sharded, and the partial ways apply where the dtype of the operands
/// allows it.
DimRule pointwise_rule(PartialWays partial = {}, PartialWays more = {});

/// Returns true if a reduction commutes with the conversion: equal types, or a
/// wider type of the same kind. Rounding and wrapping do not commute.
bool keeps_partial_dtype(at::ScalarType from, at::ScalarType to);

/// Adds a strategy for each input of `linear` that is partial with one of
/// `reductions`: this input stays partial, the first result is partial, and all
/// other tensors are replicated.
void add_linear(
    const OpCall& call,
    const std::vector<size_t>& linear,
    const std::vector<ReduceOp>& reductions,
    int64_t mesh_dim,
    Strategies& strategies);

} // namespace dtensor::detail
