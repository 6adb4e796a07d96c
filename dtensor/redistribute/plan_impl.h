// SPDX-License-Identifier: BSD-3-Clause
// What tests see of the plan cache.
#pragma once

#include <dtensor/api.h>

#include <cstddef>

namespace dtensor::detail {

/// Plans that the cache of this thread holds, and the most it ever holds.
DTENSOR_API size_t cached_plans();
DTENSOR_API size_t plan_cache_capacity();

} // namespace dtensor::detail
