// SPDX-License-Identifier: BSD-3-Clause
// Drawn calls: operators with rules, on drawn operands and arguments, in drawn
// layouts on drawn meshes. Drawn calls cover rules, layouts and meshes that
// PyTorch's samples do not. The gradient of a loss determines the layouts of
// gradients.
#pragma once

#include "tests/randomized/harness/harness.h"

#include <string>
#include <vector>

namespace dtensor::randomized {

/// Draws a call of one of the operators; consecutive seeds draw each in turn.
/// Operands are small, or have heads that units of 64 and 192 keep unsharded. A
/// quarter of the cases has such heads, or all cases.
Case draw_case(
    const std::vector<std::string>& operators,
    bool heads_only,
    uint64_t seed);

} // namespace dtensor::randomized
