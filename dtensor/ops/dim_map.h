// SPDX-License-Identifier: BSD-3-Clause
// The mathematics of operators that only move elements: where a sharded
// dimension goes when a tensor gets another shape.
//
// A view keeps the order of the elements, and so does each rank's local view.
// A layout can be kept if every rank's elements, in their order, are those of
// some layout of the new shape:
//
//   [4, 6] -> [24] on (2):   S(0) -> S(0)     S(1) -> SS(0, sf=4)
//   [24] -> [4, 6] on (2):   S(0) -> S(0)     SS(0, sf=4) -> S(1)
//   [12] -> [3, 4] on (2):   S(0) cannot be kept: rank 0 has 6 elements, which
//                            are no rows; S(0, u=4) -> S(0)
//   [3, 4] -> [12] on (2):   S(0) -> S(0, u=4)
//
// Python: torch.distributed.tensor._ops._view_ops.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor {

/// What a view makes of a layout.
struct ViewLayout {
  /// The layout of the result.
  Placements outputs;
  /// The layout that the input needs for it: its own, but Replicate on the
  /// mesh dimensions whose sharding cannot be kept.
  Placements inputs;
  /// The first mesh dimension that cannot be kept; -1: all can.
  int64_t lost_mesh_dim = -1;
};

/// The layout of a tensor of sizes `from` in layout `placements`, seen in
/// sizes `to` (as many elements, no -1). Exact for uneven and empty shards: a
/// mesh dimension is kept if on every rank the elements are the same.
/// Placements other than cuts are kept as they are.
DTENSOR_API ViewLayout view_layout(
    SizesRef from,
    SizesRef to,
    SizesRef mesh_shape,
    PlacementsRef placements);

/// Input dimension -> output dimension that has the same elements, -1 if none.
using DimMap = c10::SmallVector<int64_t, 5>;

/// Every dimension stays where it is.
DTENSOR_API DimMap identity_map(int64_t ndim);

/// Strategies of an operator with one tensor input that moves elements: a
/// mapped dimension may be sharded, and partial values stay partial. All
/// outputs have the same layout.
DTENSOR_API Strategies
move_strategies(const OpCall& call, int64_t mesh_dim, const DimMap& map);

/// The same of one that also adds elements up or combines them linearly: of
/// partial values only terms of a sum or mean stay so.
DTENSOR_API Strategies
linear_move_strategies(const OpCall& call, int64_t mesh_dim, const DimMap& map);

/// A result of the shape and dtype of the first input, for operators without a
/// meta kernel.
DTENSOR_API std::vector<OutputMeta> like_first_input(const OpCall& call);

} // namespace dtensor
