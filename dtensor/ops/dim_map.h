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
//   [12] -> [3, 4] on (2):   S(0) cannot be kept: rank 0 has 6 elements,
//                            one and a half rows. S(0, u=4) -> S(0)
//   [3, 4] -> [12] on (2):   S(0) -> S(0, u=4)
//
// Python: torch.distributed.tensor._ops._view_ops.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor {

/// A layout carried through a view.
struct ViewLayout {
  /// Layout of the result.
  Placements outputs;
  /// Layout that the input must have: its own layout, but Replicate on the mesh
  /// dimensions that cannot keep their shards.
  Placements inputs;
  /// First mesh dimension that cannot keep its shards; -1 if all can.
  int64_t lost_mesh_dim = -1;
};

/// Returns the layout of a tensor of sizes `from` in layout `placements` when
/// it is viewed with sizes `to`, which contain no -1 and give as many elements.
/// Exact for uneven and empty shards: a mesh dimension keeps its shards if
/// every rank has the same elements in both layouts. Replicated and partial
/// placements are unchanged.
DTENSOR_API ViewLayout view_layout(
    SizesRef from,
    SizesRef to,
    SizesRef mesh_shape,
    PlacementsRef placements);

/// Maps each input dimension to the output dimension that has the same
/// elements; -1 if there is none.
using DimMap = c10::SmallVector<int64_t, 5>;

/// Returns the map that keeps every dimension in its position.
DTENSOR_API DimMap identity_map(int64_t ndim);

/// Returns the strategies of an operator that moves the elements of one tensor
/// input: a mapped dimension may be sharded, and partial values stay partial.
/// All outputs have the same layout.
DTENSOR_API Strategies
move_strategies(const OpCall& call, int64_t mesh_dim, const DimMap& map);

/// Like move_strategies, for operators that also sum elements or combine them
/// linearly: only Partial(sum) and Partial(avg) are preserved.
DTENSOR_API Strategies
linear_move_strategies(const OpCall& call, int64_t mesh_dim, const DimMap& map);

/// Returns a single result with the shape and dtype of the first input, as the
/// MetaRule of operators without a meta kernel.
DTENSOR_API std::vector<OutputMeta> like_first_input(const OpCall& call);

} // namespace dtensor
