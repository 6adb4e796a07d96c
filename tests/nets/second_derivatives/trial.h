// SPDX-License-Identifier: BSD-3-Clause
// One trial: gradients of a program, and its Hessian times a vector, on full
// tensors and distributed.
#pragma once

#include "program.h"

namespace dtensor::second_derivatives {

enum class Outcome : uint8_t {
  kEqual,
  kRefused,   // with one of our errors
  kSkipped,   // the plain program has no second derivative
  kDifferent, // all other results
};

struct Verdict {
  Outcome outcome = Outcome::kEqual;
  /// For a refusal, the text in brackets: "aten::sort".
  std::string where;
  std::string why;
};

/// Tries a program. `twice` runs it again with cached decisions.
Verdict
try_program(const Program&, const std::vector<int64_t>& mesh, bool twice);

} // namespace dtensor::second_derivatives
