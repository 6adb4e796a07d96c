// SPDX-License-Identifier: BSD-3-Clause
// The plan cache, and the search for the cheapest path.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/cost.h>
#include <dtensor/redistribute/moves_impl.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/redistribute/steps_impl.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace dtensor::detail {

/// A plan in the cache of a rank, with its steps prepared for this rank.
struct RankPlan : Plan {
  /// Returns the prepared steps. The first call prepares them: a collective
  /// call if a step needs a group that does not exist yet. `from` is the layout
  /// that the plan begins with.
  const std::vector<LocalStep>& local_steps(const Spec& from) const;

 private:
  mutable std::vector<LocalStep> local_steps_;
};

/// Returns the plan that this rank is about to execute. Throws RuntimeError if
/// the specs belong to another rank.
std::shared_ptr<const RankPlan> plan_for_this_rank(
    const SpecPtr& from,
    const SpecPtr& to);

class Links;

/// Returns the plan that is cheapest if collectives cost `links`. The plan's
/// time is computed with the mesh's own costs. The plan is not cached.
std::shared_ptr<const Plan>
plan_over(const SpecPtr& from, const SpecPtr& to, const Links& links);

/// Return the number of plans in this rank's cache, and the cache's capacity.
DTENSOR_API size_t cached_plans();
DTENSOR_API size_t plan_cache_capacity();

/// Costs of the collectives of a mesh.
class Links {
 public:
  explicit Links(const DeviceMesh& mesh);

  /// Returns links that all have the same cost.
  Links priced(const LinkCost& cost) const;
  /// Returns links over which no collective joins mesh dimensions.
  Links not_joined() const;

  /// Returns the cost of collectives over several mesh dimensions: the cost of
  /// the slowest of these links.
  LinkCost over(const MeshDims& mesh_dims) const;
  /// Returns a link at least as fast as the link of any collective on a mesh of
  /// this shape.
  LinkCost fastest(SizesRef mesh_shape) const;
  /// True if one group can join these mesh dimensions.
  bool can_join(const MeshDims& mesh_dims) const;

 private:
  c10::SmallVector<LinkCost, 4> costs_;
  // For each mesh dimension, the first mesh dimension that it can be joined
  // with.
  MeshDims classes_;
};

// Search for the cheapest path through layouts.

/// Candidate placements of each mesh dimension. A mesh dimension with a single
/// option does not change.
using Options = std::vector<c10::SmallVector<Placement, 8>>;

/// Options for the path between two layouts: the placements at both ends, R,
/// shardings of up to three tensor dimensions, and P(op) where a reduction with
/// other mesh dimensions is possible. The tensor dimensions are first those
/// that one of the two layouts shards, then the largest others. Shardings are
/// Shard(d), and each StridedShard(d, sf) that can be applied after even
/// shardings further right. Strided options are dropped if there would be more
/// than a few thousand layouts, then further options.
Options
options_between(const Frame& frame, PlacementsRef from, PlacementsRef to);

/// The graph that cheapest_path() searches: layouts, and steps between them.
struct SearchSpace {
  Frame frame;
  const Links& links;
  int64_t item_size; // bytes of an element
  Options options;
};

/// Collectives over several mesh dimensions are tried on meshes of up to this
/// many dimensions of more than one rank.
inline constexpr size_t kMaxJoinedDims = 5;

/// A set of mesh dimensions of more than one rank, which one collective may be
/// over.
struct DimSet {
  MeshDims dims;
  uint64_t mask = 0; // mesh_dim_bit() each dimension
  int64_t ranks = 1;
  LinkCost link;
  int64_t latency = 0; // picoseconds of a collective that sends nothing
};

/// Returns the mesh dimensions that have a choice of placements.
MeshDims movable_dims(const Options& options);

/// Returns the sets that one collective may be over; single dimensions first.
std::vector<DimSet> joinable_sets(
    const SearchSpace& space,
    const MeshDims& movable);

/// Returns a path of least (modelled time, collectives, steps) from `from` to
/// `to`. Deterministic. No mesh dimension may change from one reduction to
/// another.
std::vector<Step>
cheapest_path(const SearchSpace& space, PlacementsRef from, PlacementsRef to);

} // namespace dtensor::detail
