// SPDX-License-Identifier: BSD-3-Clause
// Attempts of a call on DTensors, on all ranks of a mesh.
#pragma once

#include "layouts.h"
#include "meeting.h"
#include "trial.h"

#include "tests/randomized/harness/verdict.h"

namespace dtensor::randomized {

/// Tries the call and its twins in these layouts, without and with gradients,
/// and compares with the plain operator. All ranks must call this function, and
/// get the same verdict. The verdict is refused if the call itself is refused.
Verdict try_combination(
    const Trial& trial,
    const DeviceMesh& mesh,
    const Combination& combination,
    bool backwards,
    Meeting& meeting);

/// Returns "mesh (2) | f64[5, 5] S(0) | (alpha=2)".
std::string where_of(
    const Trial& trial,
    const std::vector<int64_t>& mesh_shape,
    const Combination& combination);

} // namespace dtensor::randomized
