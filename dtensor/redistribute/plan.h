// SPDX-License-Identifier: BSD-3-Clause
// Plan: how to go from one layout to another, as a value that prints.
//
//   plan(*from, *to)   // from S(0) S(1), to S(1) S(0) on (dp=2, tp=2):
//   // all_gather dim 1 on "tp": S(0) S(1) -> S(0) R
//   // ...
//
// Planning is pure and deterministic and the same on every rank; execute.h
// carries a plan out.
// Python: torch.distributed.tensor._redistribute.
#pragma once

#include <dtensor/layout/spec.h>

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace dtensor {

enum class StepKind : uint8_t {
  kSlice,         // R -> S(d), SS(d): keep my part; nothing is sent
  kAllGather,     // S(d), SS(d) -> R
  kAllToAll,      // S(a) -> S(b)
  kReduceScatter, // P(op) -> S(d)
  kAllReduce,     // P(op) -> R
  kPartition,     // R -> P(op): a local value whose reduction is the input
};

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

struct DTENSOR_API Plan {
  std::vector<Step> steps;
  /// Bytes this rank sends if every collective is bandwidth-optimal
  /// (docs/concepts/redistribute.md).
  double wire_bytes = 0;

  /// Number of steps that communicate.
  int64_t collectives() const;
};

/// A cheapest sequence of steps (wire bytes, then collectives, then steps)
/// from the layout of `from` to that of `to`. Both describe the same tensor on
/// the same mesh. Throws ValueError for different meshes or sizes, and for a
/// Partial target that cannot be reached:
///   [redistribute] cannot go from [P(sum)] to [P(max)] on mesh dim "tp": ...
/// Mesh dimensions of size 1 cost nothing and communicate nothing.
/// Results are remembered per pair of specs, in a bounded cache.
DTENSOR_API std::shared_ptr<const Plan> plan(const SpecPtr& from, const SpecPtr& to);

/// The cost of plan(from, to) in wire bytes, and whether it can be reached.
DTENSOR_API double redistribute_cost(const SpecPtr& from, const SpecPtr& to);
DTENSOR_API bool can_redistribute(const SpecPtr& from, const SpecPtr& to);

/// One line per step, "nothing to do" for an empty plan.
DTENSOR_API std::string to_string(const Plan& plan, const DeviceMesh& mesh);

/// Wire bytes per rank of bandwidth-optimal algorithms on `n` ranks.
/// `full` = bytes of the whole buffer, `local` = bytes of one rank's buffer.
DTENSOR_API double all_reduce_bytes(int64_t n, double full);
DTENSOR_API double all_gather_bytes(int64_t n, double full);
DTENSOR_API double reduce_scatter_bytes(int64_t n, double full);
DTENSOR_API double all_to_all_bytes(int64_t n, double local);

} // namespace dtensor
