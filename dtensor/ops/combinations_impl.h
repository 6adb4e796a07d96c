// SPDX-License-Identifier: BSD-3-Clause
// Combinations of strategies, one per mesh dimension, built one mesh dimension
// at a time.
#pragma once

#include <dtensor/ops/choice_cost_impl.h>
#include <dtensor/ops/propagate.h>

#include <vector>

namespace dtensor::detail {

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
