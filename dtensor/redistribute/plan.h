// SPDX-License-Identifier: BSD-3-Clause
// Plan: how to go from one layout to another, as a value that prints.
//
//   plan(from, to)   // from S(0) R to S(1) S(0) on (dp=2, tp=2):
//   // all_to_all dim 0 to 1 on "dp": S(0) R -> S(1) R
//   // slice dim 0 on "tp": S(1) R -> S(1) S(0)
//
// Planning is pure and deterministic and the same on every rank; execute.h
// carries a plan out. docs/concepts/redistribute.md tells how plans are chosen.
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

/// What one step does, and from which placements to which.
enum class StepKind : uint8_t {
  kSlice,         // R -> S(d), SS(d): keep my part; nothing is sent
  kAllGather,     // S(d), SS(d) -> R
  kAllToAll,      // S(a), SS(a) -> S(b), SS(b)
  kReduceScatter, // P(op) -> S(d), or SS(d) of equal parts
  kAllReduce,     // P(op) -> R
  kPartition,     // R -> P(op): a local value whose reduction is the input
  kPad,           // S(d), SS(d) -> P(sum, product, bor, bxor): my part in its
                  // place, the op's neutral element elsewhere; nothing is sent
};

/// The step's name in text: "slice", "all_gather", ...
DTENSOR_API std::string_view to_string(StepKind kind);

/// The collective that a step of this kind is; nothing if it sends nothing.
DTENSOR_API std::optional<CollectiveKind> collective_of(StepKind kind);

/// One mesh dimension changes its placement.
struct DTENSOR_API Step {
  StepKind kind = StepKind::kSlice;
  int64_t mesh_dim = 0;
  Placement from;
  Placement to;
  /// The whole layout before this step; after it only `mesh_dim` differs.
  Placements before;

  friend bool operator==(const Step&, const Step&) = default;
};

/// What plan() finds; empty if there is nothing to do.
struct DTENSOR_API Plan {
  std::vector<Step> steps;
  /// Bytes a rank sends if every collective is bandwidth-optimal. Of ranks
  /// with parts of unlike size the one with the largest parts counts, so that
  /// every rank computes the same number.
  double wire_bytes = 0;

  /// Number of steps that communicate.
  int64_t collectives() const;
};

/// A sequence of steps from the layout of `from` to that of `to`, which
/// describe the same tensor on the same mesh. Where one mesh dimension changes
/// and one step does it, the plan is that step; otherwise a cheapest sequence
/// (wire bytes, then collectives, then steps). A mesh dimension that is R, or
/// P(op), before and after is left alone. Mesh dimensions of size 1 take no
/// step. Throws ValueError for different meshes, sizes or dtypes, and for
/// different reductions on one mesh dimension:
///   [redistribute] cannot go from [P(sum)] to [P(max)] on mesh dim "tp": ...
/// Results are remembered per rank and pair of specs, in a bounded cache.
DTENSOR_API std::shared_ptr<const Plan> plan(
    const SpecPtr& from,
    const SpecPtr& to);

/// Whether plan(from, to) exists.
DTENSOR_API bool can_redistribute(const SpecPtr& from, const SpecPtr& to);

/// The wire bytes of plan(from, to); infinity where there is none.
DTENSOR_API double redistribute_cost(const SpecPtr& from, const SpecPtr& to);

/// One line per step, "nothing to do" for an empty plan:
///   slice dim 0 on "tp": S(1) R -> S(1) S(0)
DTENSOR_API std::string to_string(const Plan& plan, const DeviceMesh& mesh);

} // namespace dtensor
