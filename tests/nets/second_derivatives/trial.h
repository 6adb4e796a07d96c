// SPDX-License-Identifier: BSD-3-Clause
// One trial: gradients of a program, and its Hessian times a vector, on full
// tensors and distributed.
#pragma once

#include "program.h"

namespace dtensor::second_derivatives {

enum class Outcome : uint8_t {
  kEqual,
  kRefused,   // with one of our texts
  kSkipped,   // the plain program has no second derivative
  kDifferent, // everything else
};

struct Verdict {
  Outcome outcome = Outcome::kEqual;
  /// Of a refusal, what is in the brackets: "aten::sort".
  std::string where;
  std::string why;
};

/// `twice`: run it again, when every decision has been made.
Verdict
try_program(const Program&, const std::vector<int64_t>& mesh, bool twice);

} // namespace dtensor::second_derivatives
