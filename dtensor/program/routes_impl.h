// SPDX-License-Identifier: BSD-3-Clause
// In which order a value is brought to the layouts that its uses want.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <vector>

namespace dtensor::detail {

/// On the way of a value in layout `from` to `wanted[0]`: the layouts that it
/// is brought to one after the other, the last of which is that. What else is
/// wanted stands among them where bringing it there first, and others from
/// there, takes less communication in all: fewer bytes, or as many bytes in
/// fewer collectives. With `both_ways` gradients count, which come back the
/// same way.
///
///   from S(0), wanted S(1) and R   ->  R, S(1)   an all-gather, and a cut
///
/// A function of layouts alone, the same on all ranks.
DTENSOR_API std::vector<SpecPtr> cheapest_route(
    const SpecPtr& from,
    const std::vector<SpecPtr>& wanted,
    bool both_ways);

} // namespace dtensor::detail
