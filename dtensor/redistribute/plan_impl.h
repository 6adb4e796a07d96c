// SPDX-License-Identifier: BSD-3-Clause
// The plan cache: lookup for this rank, and its size for tests.
#pragma once

#include <dtensor/api.h>
#include <dtensor/redistribute/plan.h>

#include <cstddef>
#include <memory>

namespace dtensor::detail {

/// Returns the plan that this rank is about to execute. Throws RuntimeError if
/// the specs belong to another rank.
std::shared_ptr<const Plan> plan_for_this_rank(
    const SpecPtr& from,
    const SpecPtr& to);

/// Return the number of plans in this rank's cache, and the cache's capacity.
DTENSOR_API size_t cached_plans();
DTENSOR_API size_t plan_cache_capacity();

} // namespace dtensor::detail
