// SPDX-License-Identifier: BSD-3-Clause
// The plan cache, and the search for the cheapest path.
#pragma once

#include <dtensor/api.h>
#include <dtensor/redistribute/moves_impl.h>
#include <dtensor/redistribute/plan.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace dtensor::detail {

/// Returns the plan that this rank is about to execute. Throws RuntimeError if
/// the specs belong to another rank.
std::shared_ptr<const Plan> plan_for_this_rank(
    const SpecPtr& from,
    const SpecPtr& to);

/// Return the number of plans in this rank's cache, and the cache's capacity.
DTENSOR_API size_t cached_plans();
DTENSOR_API size_t plan_cache_capacity();

// Search for the cheapest path through layouts, which changes one mesh
// dimension per step.

/// Candidate placements of each mesh dimension. A mesh dimension with a single
/// option does not change.
using Options = std::vector<c10::SmallVector<Placement, 8>>;

/// Options for the path between two layouts: R, the placements at both ends,
/// and shardings of up to three tensor dimensions. The tensor dimensions are
/// those that either end shards, then the largest others. Shardings are
/// Shard(d), and each StridedShard(d, sf) that can be applied after even
/// shardings further right. Strided options are dropped if there would be more
/// than a few hundred layouts, and further options beyond a few thousand.
Options
options_between(const Frame& frame, PlacementsRef from, PlacementsRef to);

/// Returns a path of least (wire, collectives, steps) from `from` to `to`
/// within `options`. Deterministic. No mesh dimension may change from one
/// reduction to another.
std::vector<Step> cheapest_path(
    const Frame& frame,
    PlacementsRef from,
    PlacementsRef to,
    const Options& options);

} // namespace dtensor::detail
