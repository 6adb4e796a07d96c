// SPDX-License-Identifier: BSD-3-Clause
// Order in which a value is redistributed to the layouts that its uses need.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <vector>

namespace dtensor::detail {

/// Returns the layouts that a value in layout `from` passes through on its way
/// to `wanted[0]`, which is the last. The other layouts in `wanted` are
/// included if an order through them communicates less in total: fewer bytes,
/// or as many bytes in fewer collectives. With `both_ways`, the communication
/// of gradients in the backward pass counts too.
///
///   from S(0), wanted S(1) and R   ->  R, S(1)   an all-gather, then a slice
///
/// The result depends on layouts alone, so it is equal on all ranks.
DTENSOR_API std::vector<SpecPtr> cheapest_route(
    const SpecPtr& from,
    const std::vector<SpecPtr>& wanted,
    bool both_ways);

} // namespace dtensor::detail
