// SPDX-License-Identifier: BSD-3-Clause
// Plan: the steps from one layout to another, as a printable value.
//
//   plan(from, to)   // from S(0) R to S(1) S(0) on (dp=2, tp=2):
//   // all_to_all dim 0 to 1 on "dp": S(0) R -> S(1) R
//   // slice dim 0 on "tp": S(1) R -> S(1) S(0)
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

/// The kinds of step, with the placements before and after.
enum class StepKind : uint8_t {
  kSlice,         // R -> S(d), SS(d): keep the local shard; sends nothing
  kAllGather,     // S(d), SS(d) -> R
  kAllToAll,      // S(a), SS(a) -> S(b), SS(b)
  kReduceScatter, // P(op) -> S(d), or SS(d) with equal shards
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

/// A change of the placement on one mesh dimension.
struct DTENSOR_API Step {
  StepKind kind = StepKind::kSlice;
  int64_t mesh_dim = 0;
  Placement from;
  Placement to;
  /// The full layout before this step. After the step only `mesh_dim` differs.
  Placements before;

  friend bool operator==(const Step&, const Step&) = default;
};

/// The result of plan(). Without steps if the layouts are equal.
struct DTENSOR_API Plan {
  std::vector<Step> steps;
  /// Bytes that a rank sends if every collective is bandwidth-optimal. Uneven
  /// shards all count as large as the largest, so every rank computes the same
  /// number.
  double wire_bytes = 0;

  /// Returns the number of steps that communicate.
  int64_t collectives() const;
};

/// Returns the steps from the layout of `from` to that of `to`. Both must
/// describe the same tensor on the same mesh. If a single mesh dimension
/// changes and one step suffices, the plan is that step. Otherwise the plan is
/// a sequence with the fewest wire bytes, then collectives, then steps. A mesh
/// dimension with the same placement, R or P(op), in both layouts keeps it in
/// every step. Mesh dimensions of size 1 need no step. Throws ValueError for
/// different meshes, sizes or dtypes, and for different reductions on one mesh
/// dimension:
///   [redistribute] cannot go from [P(sum)] to [P(max)] on mesh dim "tp": ...
/// Plans are cached per rank and pair of specs, in a bounded cache.
DTENSOR_API std::shared_ptr<const Plan> plan(
    const SpecPtr& from,
    const SpecPtr& to);

/// True if plan(from, to) exists.
DTENSOR_API bool can_redistribute(const SpecPtr& from, const SpecPtr& to);

/// Returns the wire bytes of plan(from, to); infinity if no plan exists.
DTENSOR_API double redistribute_cost(const SpecPtr& from, const SpecPtr& to);

/// Prints one line per step, or "nothing to do" for an empty plan:
///   slice dim 0 on "tp": S(1) R -> S(1) S(0)
DTENSOR_API std::string to_string(const Plan& plan, const DeviceMesh& mesh);

} // namespace dtensor
