// SPDX-License-Identifier: BSD-3-Clause
// One trial: a plan on one process, and on ranks.
#pragma once

#include <tests/randomized/harness/verdict.h>

#include "plan.h"

namespace dtensor::units {

randomized::Verdict try_plan(const Plan& plan);

/// Returns the smallest plan that also differs, with its difference.
std::string shrink(Plan plan);

} // namespace dtensor::units
