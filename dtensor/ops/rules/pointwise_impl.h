// SPDX-License-Identifier: BSD-3-Clause
// Strategies of operators that compute each element of the result from the
// elements of the (broadcast) operands at its place.
#pragma once

#include <dtensor/ops/strategy.h>

#include <initializer_list>
#include <vector>

namespace dtensor::detail {

/// What an operator does to the order of terms.
enum class Order : uint8_t {
  kAny,      // it picks or maps each number for itself
  kShifted,  // it adds the same to all; integers would wrap, so not these
  kReversed, // the greatest becomes the least; not integers either
};

/// Operands that may be Partial at the same time, the others being replicated;
/// the result is Partial then.
struct PartialWays {
  std::vector<ReduceOp> ops;
  std::vector<std::vector<size_t>> operands;
  Order order = Order::kAny;
};

// Functions, for rules register before global objects are made.

/// Linear operators keep these.
inline std::vector<ReduceOp> sum_ops() {
  return {ReduceOp::kSum, ReduceOp::kAvg};
}
/// Non-decreasing operators keep these.
inline std::vector<ReduceOp> order_ops() {
  return {ReduceOp::kMax, ReduceOp::kMin};
}
/// Operators that pick elements keep these, to which a replicated operand can
/// be turned.
inline std::vector<ReduceOp> select_ops() {
  return {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin};
}

/// Operators that only move elements keep any.
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

/// The placement of an operand of `sizes` when dimension `dim` of a result of
/// `out_sizes` is sharded: it is sharded there as well unless it is broadcast.
Placement operand_shard(SizesRef sizes, SizesRef out_sizes, int64_t dim);

/// Every dimension of the result may be sharded, and the partial ways hold
/// where the dtype of the operands allows it.
DimRule pointwise_rule(PartialWays partial = {}, PartialWays more = {});

/// Whether a reduction commutes with the conversion: equal types, or a wider
/// type of the same kind. Rounding and wrapping do not commute.
bool keeps_partial_dtype(at::ScalarType from, at::ScalarType to);

} // namespace dtensor::detail
