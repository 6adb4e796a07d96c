// SPDX-License-Identifier: BSD-3-Clause
// Helper for the rules and kernels of squeeze.
#pragma once

#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// Returns the dimensions of size 1 among `dims`, which squeeze drops.
std::vector<int64_t> squeezed(SizesRef sizes, const std::vector<int64_t>& dims);

} // namespace dtensor::detail
