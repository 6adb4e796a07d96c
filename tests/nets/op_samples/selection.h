// SPDX-License-Identifier: BSD-3-Clause
// Which calls of an operator and which of their combinations are tried: all, a
// part, or in brief very few.
#pragma once

#include "layouts.h"
#include "trial.h"
#include "worker.h"

#include <set>

namespace dtensor::nets {

/// Numbers of the calls of one operator: one call, and of those with twins one
/// on real operands and one on complex ones.
std::set<size_t> drawn_in_brief(
    const std::vector<Call>& calls,
    const Settings& settings);

/// For what is drawn of a call on a mesh.
uint64_t seed_of(const Settings& settings, const Call& call, int64_t mesh);

/// Indices into `all`.
std::set<size_t> selected(
    const Settings& settings,
    const Trial& trial,
    int64_t mesh,
    const std::vector<Combination>& all);

} // namespace dtensor::nets
