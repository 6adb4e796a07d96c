// SPDX-License-Identifier: BSD-3-Clause
// One trial: a plan on one process, and on ranks.
#pragma once

#include "plan.h"

#include <string>

namespace dtensor::units {

enum class Outcome : uint8_t {
  kEqual,
  kRefused,   // with one of our errors, on all ranks
  kSkipped,   // the plain program fails
  kDifferent, // all other results
};

struct Verdict {
  Outcome outcome = Outcome::kEqual;
  /// For a refusal, the text in brackets: "aten::sort".
  std::string where;
  std::string why;
};

Verdict try_plan(const Plan& plan);

/// Returns the smallest plan that also differs.
Plan shrink(Plan plan);

} // namespace dtensor::units
