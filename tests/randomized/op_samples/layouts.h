// SPDX-License-Identifier: BSD-3-Clause
// Layouts in which a call is tried, and operands in these layouts.
#pragma once

#include "truth.h"

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

namespace dtensor::randomized {

/// One layout per operand. An operand with an empty layout stays a plain
/// tensor.
using Combination = std::vector<Placements>;

/// Returns the layouts to try. All operands replicated come first. Then every
/// operand is sharded along each of its dimensions and made a partial sum, on
/// each mesh dimension alone. `random` drawn combinations follow.
std::vector<Combination> combinations_of(
    const Truth& truth,
    const std::vector<int64_t>& mesh_shape,
    size_t random,
    uint64_t seed);

bool is_replicated(const Combination& combination);

/// Returns "f64[5, 5] S(0), f64[5] R".
std::string to_string(const Truth& truth, const Combination& combination);

/// Returns the operands in the layouts of `combination`. Each rank slices its
/// own shards. Terms of partial sums differ across ranks, and add up to exactly
/// the same bits.
Tensors place(
    const Truth& truth,
    const DeviceMesh& mesh,
    const Combination& combination);

} // namespace dtensor::randomized
