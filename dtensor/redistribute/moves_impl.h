// SPDX-License-Identifier: BSD-3-Clause
// The legal single steps between layouts, and their costs. Layouts and steps
// form a graph, and a plan is a path in it.
//
// A sharding of a tensor dimension can be undone, or added, only as the last
// sharding applied to that dimension. Placements apply from left to right, so
// the last one is normally the rightmost. A StridedShard is the exception: it
// can stand left of shardings that were applied before it. On (2, 3), with a
// size divisible by 6,
//
//   SS(0, sf=3) S(0): mesh dim 1 shards into 3 first, then mesh dim 0 into 2,
//                     so mesh dim 0 can be gathered and mesh dim 1 cannot.
#pragma once

#include <dtensor/redistribute/plan.h>

#include <optional>

namespace dtensor::detail {

/// The values that stay constant on the path from one layout to another.
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

/// True if the shardings of `mesh_dims` can be undone one after the other, in
/// some order, so that the ranks over `mesh_dims` together hold what each rank
/// holds if those mesh dims are R.
bool are_last_shardings(
    const Frame& frame,
    Placements placements,
    MeshDims mesh_dims);

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

/// Returns the number of elements of the largest local tensor, which is the
/// first rank's.
int64_t largest_numel(const Frame& frame, PlacementsRef placements);

/// True if the layout's local shards have the same size on all ranks.
bool has_equal_shards(const Frame& frame, PlacementsRef placements);
bool has_equal_shards(const Spec& spec);

/// True if a step only permutes the shards of its mesh dimensions: these are
/// sharded before and after, and no other mesh dimension changes.
bool is_permutation(const Step& step);

/// Returns the number of elements that a rank sends in a step, times the number
/// of ranks of its group. The product is an integer, so costs compare exactly.
int64_t elements_sent_times_ranks(const Frame& frame, const Step& step);

} // namespace dtensor::detail
