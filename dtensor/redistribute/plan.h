// SPDX-License-Identifier: BSD-3-Clause
// Plan: the steps from one layout to another, as a printable value.
//
//   plan(from, to)   // f32[4096, 4096], S(0) P(sum) to R R on (dp=2, tp=2):
//   // reduce_scatter dim 0 on "tp": S(0) P(sum) -> S(0) S(0)
//   // all_gather dim 0 on "dp", "tp": S(0) S(0) -> R R
//
// Planning is pure, deterministic and identical on every rank; execute.h
// executes plans. docs/concepts/redistribute.md describes how a plan is chosen.
// Python: torch.distributed.tensor._redistribute.
#pragma once

#include <dtensor/layout/cost.h>
#include <dtensor/layout/spec.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

/// The kinds of step, with the placements before and after on each of the
/// step's mesh dimensions. Collectives may be over several mesh dimensions.
enum class StepKind : uint8_t {
  kSlice,         // R -> S(d), SS(d): keep the local shard; sends nothing
  kAllGather,     // S(d), SS(d) -> R
  kAllToAll,      // S(a), SS(a) -> S(b), SS(b); and see Step
  kReduceScatter, // P(op) -> S(d), SS(d)
  kAllReduce,     // P(op) -> R
  kPartition,     // R -> P(op): make local values that reduce to the input
  kPad,           // S(d), SS(d) -> P(sum, product, bor, bxor): pad the shard
                  // to full size with neutral elements; sends nothing
};

/// Returns the step's name in plan texts: "slice", "all_gather", ...
DTENSOR_API std::string_view to_string(StepKind kind);

/// Returns the collective of a step of this kind; empty if the step sends
/// nothing.
DTENSOR_API std::optional<CollectiveKind> collective_of(StepKind kind);

/// A set of mesh dimensions, in mesh order.
using MeshDims = c10::SmallVector<int64_t, 4>;

/// A change from one layout to another by one local operation or collective.
struct DTENSOR_API Step {
  StepKind kind = StepKind::kSlice;
  /// Mesh dimensions of the collective. Placements on other mesh dimensions
  /// stay, except in an all_to_all in which ranks send only what others need.
  /// There, a mesh dimension of the collective may also keep its placement or
  /// change to R, and another mesh dimension may change from R to a shard.
  MeshDims mesh_dims;
  /// The full layouts before and after this step.
  Placements before;
  Placements after;

  friend bool operator==(const Step&, const Step&) = default;
};

/// The result of plan(). Has no steps if the layouts are equal.
struct DTENSOR_API Plan {
  std::vector<Step> steps;
  /// Bytes that a rank sends if every collective is bandwidth-optimal. Uneven
  /// shards all count as large as the largest, so every rank computes the same
  /// number.
  double wire_bytes = 0;
  /// Modelled time of the collectives in microseconds (LinkCost in
  /// layout/cost.h); equal on all ranks.
  double microseconds = 0;

  /// Returns the number of steps that communicate.
  int64_t collectives() const;
};

/// Returns the steps from the layout of `from` to that of `to`. Both specs must
/// describe the same tensor on the same mesh. Among all sequences of steps, the
/// plan has the least modelled time, then the fewest collectives, then the
/// fewest steps. A small tensor therefore gets the plan with the fewest
/// collectives, a large tensor the plan that sends the fewest bytes. A step may
/// change any mesh dimension, also one with the same placement in both layouts.
/// Mesh dimensions of size 1 need no step. Throws ValueError for different
/// meshes, sizes or dtypes, and for different reductions on one mesh dimension:
///   [redistribute] cannot go from [P(sum)] to [P(max)] on mesh dim "tp": ...
/// Plans are cached per rank and pair of specs, in a bounded cache.
DTENSOR_API std::shared_ptr<const Plan> plan(
    const SpecPtr& from,
    const SpecPtr& to);

/// True if plan(from, to) exists.
DTENSOR_API bool can_redistribute(const SpecPtr& from, const SpecPtr& to);

/// Returns the modelled microseconds of plan(from, to); infinity if no plan
/// exists. Costs are zero between equal layouts and obey the triangle
/// inequality.
DTENSOR_API double redistribute_cost(const SpecPtr& from, const SpecPtr& to);

/// Prints one line per step, or "nothing to do" for an empty plan:
///   slice dim 0 on "tp": S(1) R -> S(1) S(0)
///   all_gather dims 0, 1 on "dp", "tp": S(0) S(1) -> R R
DTENSOR_API std::string to_string(const Plan& plan, const DeviceMesh& mesh);

/// Prints plan(from, to) with its collectives, bytes and modelled time. For
/// comparison, also prints the plans with the fewest collectives, with the
/// fewest bytes, and with collectives over one mesh dimension at a time, with
/// their times. Throws as plan() does.
DTENSOR_API std::string explain_plan(const SpecPtr& from, const SpecPtr& to);

} // namespace dtensor
