// SPDX-License-Identifier: BSD-3-Clause
// Drawn calls: operators with rules, on drawn operands and arguments, in drawn
// layouts on drawn meshes. They reach rules, layouts and meshes that PyTorch's
// samples do not, and the gradient of a loss decides the layouts of gradients.
#pragma once

#include "tests/randomized/harness/harness.h"

#include <string>
#include <vector>

namespace dtensor::randomized {

/// Draws a call of one of the operators; consecutive seeds draw each in turn.
/// Operands are small, or have heads that units of 64 and 192 keep unsharded:
/// in a quarter of the cases, or in all.
Case draw_case(
    const std::vector<std::string>& operators,
    bool heads_only,
    uint64_t seed);

} // namespace dtensor::randomized
