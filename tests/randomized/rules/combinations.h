// SPDX-License-Identifier: BSD-3-Clause
// Placements of a call's operands on one mesh dimension, and the decision of
// sharding propagation for them.
#pragma once

#include "tests/randomized/op_samples/layouts.h"

#include <dtensor/ops/strategy.h>

namespace dtensor::randomized {

/// Returns up to `limit` combinations of one placement per operand on a mesh of
/// `ranks` ranks: Replicate, Shard of every dimension that gives each rank
/// elements, and Partial(sum). Combinations with few operands that are not
/// replicated come first. The combination with all operands replicated is left
/// out.
std::vector<Combination>
placements_of(const Truth& truth, int64_t ranks, size_t limit);

/// Returns one placement per operand: R for an operand that stays plain.
Placements one_dim(const Combination& combination);

/// Returns the rule's strategies whose inputs have exactly this layout. None if
/// the rule refuses the layout.
Strategies strategies_with(
    const Call& call,
    const Truth& truth,
    const OpRule& rule,
    const Combination& combination,
    int64_t ranks);

/// Returns true if the operator's rule runs the call in this layout without
/// redistributing an operand. False if the rule refuses the layout.
bool keeps_layouts(
    const Call& call,
    const Truth& truth,
    const OpRule& rule,
    const Combination& combination,
    int64_t ranks);

} // namespace dtensor::randomized
