// SPDX-License-Identifier: BSD-3-Clause
// The plain operator on the local tensors that ranks would have, without ranks.
#pragma once

#include "tests/randomized/op_samples/layouts.h"

#include <optional>

namespace dtensor::randomized {

/// Calls the plain operator on the local tensors of each rank and returns one
/// placement per result with which the local results are the results of the
/// full call: "S(0)", "R" or "P(sum)". Returns nothing if a local call throws
/// or a result has no such placement.
std::optional<Placements> placements_on_shards(
    const Call& call,
    const Truth& truth,
    const Combination& combination,
    int64_t ranks);

/// Returns for each operand whether other values of it change the results. If
/// they do not, a layout of the operand says nothing.
std::vector<bool> influences_of(const Call& call, const Truth& truth);

} // namespace dtensor::randomized
