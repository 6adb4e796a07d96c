// SPDX-License-Identifier: BSD-3-Clause
// Which layouts a call is tried in, and operands in them.
#pragma once

#include "truth.h"

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

namespace dtensor::nets {

/// One layout per operand; an empty one leaves the operand plain.
using Combination = std::vector<Placements>;

/// All replicated first; then every operand cut along each of its dimensions
/// and as a partial sum, by each mesh dimension alone; then `random` drawn
/// ones.
std::vector<Combination> combinations_of(
    const Truth& truth,
    const std::vector<int64_t>& mesh_shape,
    size_t random,
    uint64_t seed);

bool is_replicated(const Combination& combination);

/// "f64[5, 5] S(0), f64[5] R".
std::string to_string(const Truth& truth, const Combination& combination);

/// The operands in those layouts; each rank cuts its own. Terms of partial
/// sums differ between the ranks, and add up to the same bits.
Tensors place(
    const Truth& truth,
    const DeviceMesh& mesh,
    const Combination& combination);

} // namespace dtensor::nets
