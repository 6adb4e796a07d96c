// SPDX-License-Identifier: BSD-3-Clause
// How plans are kept, and what tests see of it.
#pragma once

#include <dtensor/api.h>
#include <dtensor/redistribute/plan.h>

#include <cstddef>
#include <memory>

namespace dtensor::detail {

/// The plan that this rank is about to execute. Throws RuntimeError for specs
/// of another rank.
std::shared_ptr<const Plan> plan_of_mine(
    const SpecPtr& from,
    const SpecPtr& to);

/// Plans that the cache of this rank holds, and the most it ever holds.
DTENSOR_API size_t cached_plans();
DTENSOR_API size_t plan_cache_capacity();

} // namespace dtensor::detail
