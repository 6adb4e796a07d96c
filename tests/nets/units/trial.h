// SPDX-License-Identifier: BSD-3-Clause
// One trial: what a plan does on one process, and on ranks.
#pragma once

#include "plan.h"

#include <string>

namespace dtensor::units {

enum class Outcome : uint8_t {
  kEqual,
  kRefused,   // with one of our texts, on all ranks
  kSkipped,   // the plain program fails
  kDifferent, // everything else
};

struct Verdict {
  Outcome outcome = Outcome::kEqual;
  /// Of a refusal, what is in the brackets: "aten::sort".
  std::string where;
  std::string why;
};

Verdict try_plan(const Plan& plan);

/// The smallest one that is different, too.
Plan shrink(Plan plan);

} // namespace dtensor::units
