// SPDX-License-Identifier: BSD-3-Clause
// The plain operator on the local tensors that ranks would have, without ranks.
#pragma once

#include "tests/randomized/op_samples/layouts.h"

#include <optional>

namespace dtensor::randomized {

/// Calls the plain operator on the local tensors of each rank. Returns one
/// placement per result, "S(0)", "R" or "P(sum)", in which the local results
/// form the result of the full call. Returns nothing if a local call throws or
/// a result has no such placement.
std::optional<Placements> placements_on_shards(
    const Call& call,
    const Truth& truth,
    const Combination& combination,
    int64_t ranks);

/// Returns one flag per operand: true if other values of the operand change the
/// results. If they do not, a layout of the operand proves nothing.
std::vector<bool> influences_of(const Call& call, const Truth& truth);

} // namespace dtensor::randomized
