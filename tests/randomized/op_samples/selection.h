// SPDX-License-Identifier: BSD-3-Clause
// Selection of an operator's calls and layouts: all, a fraction, or very few in
// brief mode.
#pragma once

#include "layouts.h"
#include "trial.h"
#include "worker.h"

#include <set>

namespace dtensor::randomized {

/// Returns the indices of the selected calls of one operator: one call, and two
/// of the calls with twins, one on real and one on complex operands.
std::set<size_t> drawn_in_brief(
    const std::vector<Call>& calls,
    const Settings& settings);

/// Returns the seed for a call on a mesh.
uint64_t seed_of(const Settings& settings, const Call& call, int64_t mesh);

/// Returns indices into `all`.
std::set<size_t> selected(
    const Settings& settings,
    const Trial& trial,
    int64_t mesh,
    const std::vector<Combination>& all);

} // namespace dtensor::randomized
