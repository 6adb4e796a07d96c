// SPDX-License-Identifier: BSD-3-Clause
// What rules and kernels of squeeze share.
#pragma once

#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// The dimensions of size 1 among `dims`: those that squeeze drops.
std::vector<int64_t> squeezed(SizesRef sizes, const std::vector<int64_t>& dims);

} // namespace dtensor::detail
