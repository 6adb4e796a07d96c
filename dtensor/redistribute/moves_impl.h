// SPDX-License-Identifier: BSD-3-Clause
// What one step may do to a layout, and what it costs: the graph in which
// plans are paths.
//
// A cut can be undone, or added, only as the last one applied to its tensor
// dimension. Placements apply from left to right, so that is the rightmost
// one, with one exception: a StridedShard can stand left of cuts that were
// applied before it. On (2, 3), with a size that 6 divides,
//
//   SS(0, sf=3) S(0): mesh dim 1 cuts into 3 first, then mesh dim 0 into 2,
//                     so mesh dim 0 can be gathered and mesh dim 1 cannot.
#pragma once

#include <dtensor/redistribute/plan.h>

#include <optional>

namespace dtensor::detail {

/// What stays the same on all the way from one layout to another.
struct Frame {
  SizesRef sizes;
  SizesRef mesh_shape;
};

/// How `cut` on mesh dim `mesh_dim` cuts the local tensor that a rank has when
/// `mesh_dim` is R and the others are as in `placements`; nothing if other cuts
/// of the same tensor dimension were applied after it.
///
///   on (2, 3), size 6, mesh dim 0:  SS(0, sf=3) beside S(0)  -> S(0)
///                                   SS(0, sf=6) beside S(0)  -> nothing
///                                   SS(0, sf=3) beside R     -> SS(0, sf=3)
std::optional<Placement> last_cut(
    const Frame& frame,
    PlacementsRef placements,
    int64_t mesh_dim,
    const Placement& cut);

/// The step that changes `mesh_dim` of the layout `before` to `to`, another
/// placement; nothing if no single step does.
std::optional<StepKind> step_kind(
    const Frame& frame,
    PlacementsRef before,
    int64_t mesh_dim,
    const Placement& to);

/// Elements of the largest local tensor, that of the first rank.
int64_t largest_numel(const Frame& frame, PlacementsRef placements);

/// Whether every cut of the layout makes parts of one size for all ranks.
bool has_equal_parts(const Frame& frame, PlacementsRef placements);
bool has_equal_parts(const Spec& spec);

/// Elements that a rank sends in a step over `n` ranks, times n: a whole
/// number, so costs compare exactly. `before` and `after` count the elements of
/// the local tensor on both sides of the step.
int64_t
wire_times_ranks(StepKind kind, int64_t n, int64_t before, int64_t after);

} // namespace dtensor::detail
