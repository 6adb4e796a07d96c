// SPDX-License-Identifier: BSD-3-Clause
// Combinations of strategies, one per mesh dimension, built one mesh dimension
// at a time, and their modelled times, which propagate() compares.
#pragma once

#include <dtensor/ops/propagate.h>
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

/// The modelled time of a combination of strategies, one per mesh dimension. A
/// time is the sum of
///
///   redistribution  the times of the inputs' plans (redistribute_cost)
///   use of results  the collective that a result will need before its use
///   duplicated work the time of computations that other ranks repeat
///
/// The last two count only mesh dimensions on which a strategy moves an input:
/// a strategy that moves no input keeps the layouts that the program chose.
/// docs/concepts/operators.md gives the details.
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

/// The order of combinations. The first combination in this order is chosen.
struct Rank {
  /// Inputs and mesh dimensions that newly shard fewer elements than ranks.
  int last_resorts = 0;
  /// Time (ChoiceCost).
  Picoseconds time = 0;
  /// Inputs and mesh dimensions whose placements change.
  int changes = 0;
  /// Results and mesh dimensions whose placements are Partial or Replicate.
  int not_sharded = 0;
  /// Positions of the strategies in the lists of their mesh dimensions.
  c10::SmallVector<size_t, 4> order;

  friend bool operator<(const Rank& a, const Rank& b);
};

/// The combinations of a call. Holds the strategies of the first mesh
/// dimensions, and lists the options for the next mesh dimension.
class Combinations {
 public:
  /// A strategy of the next mesh dimension. The feasibility is never
  /// kLastResort, which depends on all mesh dimensions.
  struct Option {
    Strategy strategy;
    Feasibility feasibility;
  };
  using Planned = std::vector<SpecPtr>;

  Combinations(
      const OpCall& call,
      const OpRule& rule,
      const Constraints& constraints);

  /// Returns the number of mesh dimensions that have a strategy.
  size_t size() const {
    return chosen_.inputs.empty() ? 0 : chosen_.inputs[0].size();
  }
  const MeshStrategy& chosen() const {
    return chosen_;
  }

  /// Returns the strategies of the next mesh dimension, in the order of
  /// candidates().
  std::vector<Option> options() const;

  /// Add a strategy of the next mesh dimension, and remove the last strategy.
  void add(const Strategy& strategy);
  void remove();

  /// Lets options() see the layouts of the last strategy. Returns the layouts
  /// that options() saw before, for restore().
  Planned plan_next();
  void restore(const Planned& before);

  /// Returns the rank of the strategies so far, without time and order.
  Rank rank() const;

 private:
  const OpCall& call_;
  const OpRule& rule_;
  const Constraints constraints_;
  OpCall planned_;
  MeshStrategy chosen_;
};

/// The chosen combination.
struct ChosenLayouts {
  MeshStrategy layouts;
  /// Position of each mesh dimension's strategy in Combinations::options().
  c10::SmallVector<size_t, 4> taken;
};

/// Returns the first combination in the order of Rank; empty if none is
/// feasible. `failed` then receives a mesh dimension without a feasible
/// strategy. The search is exact on meshes of up to three dimensions. On larger
/// meshes, the search stops after a number of combinations.
std::optional<ChosenLayouts> choose_layouts(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    int64_t& failed);

/// Returns the strategies of each mesh dimension, with their costs if the other
/// mesh dimensions keep their chosen strategies.
std::vector<Choice> list_choices(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    const ChosenLayouts& chosen);

/// Returns the strategies of a mesh dimension without a feasible strategy.
Choice list_infeasible(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    int64_t mesh_dim);

} // namespace dtensor::detail
