// SPDX-License-Identifier: BSD-3-Clause
// The modelled time of a combination of strategies, one per mesh dimension.
// propagate() compares these times. A time is the sum of
//
//   redistribution  the times of the inputs' plans (redistribute_cost)
//   use of results  the collective that a result will need before its use
//   duplicated work the time of computations that other ranks repeat
//
// The last two count only mesh dimensions on which a strategy moves an input: a
// strategy that moves no input keeps the layouts that the program chose.
// docs/concepts/operators.md gives the details.
#pragma once

#include <dtensor/ops/strategy.h>
#include <dtensor/redistribute/least_time_impl.h>
#include <dtensor/redistribute/plan_impl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Modelled time in picoseconds: an integer, so that times compare exactly.
using Picoseconds = int64_t;
inline constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

constexpr double to_microseconds(Picoseconds time) {
  return static_cast<double>(time) / 1e6;
}

class ChoiceCost {
 public:
  explicit ChoiceCost(const OpCall& call);

  /// Returns a lower bound for the times of all combinations that begin with
  /// these placements on the first mesh dimensions.
  Picoseconds at_least(const MeshStrategy& first) const;

  /// Returns the time of a combination. If the time is above `limit`, may
  /// return a lower bound of it that is above `limit` instead. Throws if a
  /// placement does not fit its input.
  Picoseconds of(const MeshStrategy& chosen, Picoseconds limit = kNever - 1)
      const;

  /// True if the strategy with the input placements `to` on `mesh_dim` needs
  /// elements of input `i` from other ranks.
  bool moves(size_t i, size_t mesh_dim, const Placement& to) const;

 private:
  uint64_t moving_dims(const MeshStrategy& first) const;
  bool has_sharded_input(size_t mesh_dim) const {
    return (sharded_ & mesh_dim_bit(mesh_dim)) != 0;
  }
  bool keeps_unsharded(const MeshStrategy& first, size_t mesh_dim) const;
  Picoseconds redistribution(size_t i, const Placements& to) const;
  Picoseconds redistribution_at_least(size_t i, const Placements& first) const;
  Picoseconds
  use_of_result(size_t o, const MeshStrategy& first, uint64_t moving) const;
  /// Returns the collective that result `o` will need on a mesh dimension.
  std::optional<CollectiveKind>
  next_collective(size_t o, const MeshStrategy& first, size_t mesh_dim) const;
  Picoseconds duplicated(const MeshStrategy& first, uint64_t moving) const;
  Picoseconds after_redistribution(const MeshStrategy& first) const;
  double local_elements(int64_t numel, const Placements& first) const;
  int64_t ranks(const MeshDims& dims) const;

  const OpCall& call_;
  Links links_;
  MeshDims shape_;
  std::vector<LeastTime> least_times_; // of the inputs
  uint64_t sharded_ = 0; // mesh dimensions on which an input is sharded
  // For each result of a gradient formula, the input whose gradient this result
  // is; -1 if unknown.
  c10::SmallVector<int, 4> exits_;
  // Known times of redistributions of each input.
  mutable std::vector<std::vector<std::pair<Placements, Picoseconds>>> known_;
};

} // namespace dtensor::detail
