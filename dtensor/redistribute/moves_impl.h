// SPDX-License-Identifier: BSD-3-Clause
// The legal single steps between layouts, and their costs. Layouts and steps
// form a graph, and a plan is a path in this graph.
//
// A sharding of a tensor dimension can be undone, or added, only as the last
// sharding applied to that dimension. Placements apply from left to right, so
// the last sharding is normally the rightmost. A StridedShard is the exception:
// it can stand left of shardings that were applied before it. On (2, 3), with a
// size divisible by 6,
//
//   SS(0, sf=3) S(0): mesh dim 1 shards into 3 first, then mesh dim 0 into 2,
//                     so mesh dim 0 can be gathered and mesh dim 1 cannot.
#pragma once

#include <dtensor/redistribute/plan.h>

#include <optional>

namespace dtensor::detail {

/// The values that are constant on the path from one layout to another.
struct Frame {
  SizesRef sizes;
  SizesRef mesh_shape;
};

/// Expresses `sharding` on mesh dim `mesh_dim` as a sharding of the local
/// tensor that a rank has when `mesh_dim` is R and the others are as in
/// `placements`. Empty if other shardings of the same tensor dimension were
/// applied after `sharding`.
///
///   on (2, 3), size 6, mesh dim 0:  SS(0, sf=3) beside S(0)  -> S(0)
///                                   SS(0, sf=6) beside S(0)  -> nothing
///                                   SS(0, sf=3) beside R     -> SS(0, sf=3)
std::optional<Placement> last_sharding(
    const Frame& frame,
    PlacementsRef placements,
    int64_t mesh_dim,
    const Placement& sharding);

/// Returns the kind of the single step that changes `mesh_dim` of the layout
/// `before` to `to`, a different placement; empty if no single step does.
std::optional<StepKind> step_kind(
    const Frame& frame,
    PlacementsRef before,
    int64_t mesh_dim,
    const Placement& to);

/// Returns true if P(op) on `mesh_dim` commutes with the other reductions of
/// the layout.
bool goes_with_other_partials(
    PlacementsRef placements,
    int64_t mesh_dim,
    ReduceOp op);

/// True for the ops that have a neutral element in every dtype, so that a shard
/// can be padded to P(op).
bool can_pad(ReduceOp op);

/// True for sum and avg, which mix in one layout.
bool is_linear(ReduceOp op);

/// Returns the number of ranks over several mesh dimensions.
int64_t ranks_over(const Frame& frame, const MeshDims& mesh_dims);

/// Returns the number of elements of the largest local tensor. The first rank
/// has this tensor.
int64_t largest_numel(const Frame& frame, PlacementsRef placements);

/// True if all blocks of a dimension of `size`, and all `parts` shards of each
/// block, have the same size.
bool shards_evenly(int64_t size, const Placement& sharding, int64_t parts);

/// True if the layout's local shards have the same size on all ranks.
bool has_equal_shards(const Spec& spec);

/// For each mesh dimension that shards a tensor dimension, the number of equal
/// blocks that it splits: 2 for mesh dim 1 of S(0) S(0) on (2, 2), and for mesh
/// dim 0 of SS(0, sf=2) S(0). 0 for other mesh dimensions, and kUneven if the
/// blocks are not all equal. A mesh dimension that splits as many blocks of the
/// same tensor dimension in two layouts gives its ranks the same elements.
using BlockCounts = c10::SmallVector<int64_t, 4>;
inline constexpr int64_t kUneven = -1;
BlockCounts block_counts(const Frame& frame, PlacementsRef placements);
/// Like the overload above, but counts only mesh dimensions that shard `dim`.
BlockCounts
block_counts(const Frame& frame, PlacementsRef placements, int64_t dim);

/// A step in which the ranks over a set of mesh dimensions exchange their
/// elements. All mesh dimensions of the set are sharded before the step.
struct Exchange {
  PlacementsRef before;
  PlacementsRef after;
  const BlockCounts& blocks_before;
  const BlockCounts& blocks_after;
  uint64_t mask; // mesh_dim_bit() of the set's dimensions
};

template <typename Index>
constexpr uint64_t mesh_dim_bit(Index mesh_dim) {
  return uint64_t{1} << mesh_dim;
}

/// True if each rank's group holds before the step, along tensor dimension
/// `dim`, the elements that the rank holds afterwards. An exchange is possible
/// if this is true for all dimensions. For uneven shards over more than 64
/// ranks, the result may be false although the group holds the elements.
bool holds_all(const Frame& frame, const Exchange& exchange, int64_t dim);

/// True if a step only permutes the shards of its mesh dimensions: these are
/// sharded before and after, and no other mesh dimension changes.
bool is_permutation(const Step& step);

/// True if the bytes of a step's collective are counted from the local tensor
/// after the step; false if they are counted from the local tensor before it.
bool counts_result(StepKind kind, bool is_permutation);

/// Returns the bytes that a rank sends in a step that is a collective. The
/// second overload is for a collective over `ranks` ranks whose bytes are
/// counted from a tensor of `numel` elements.
double bytes_sent(const Frame& frame, const Step& step, int64_t item_size);
double bytes_sent(
    CollectiveKind collective,
    int64_t ranks,
    int64_t numel,
    int64_t item_size);

} // namespace dtensor::detail
