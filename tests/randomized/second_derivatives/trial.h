// SPDX-License-Identifier: BSD-3-Clause
// One trial: gradients of a program, and its Hessian times a vector, on full
// tensors and distributed.
#pragma once

#include "program.h"
#include "tests/randomized/harness/verdict.h"

namespace dtensor::second_derivatives {

/// Tries a program. `twice` runs it again with cached decisions. A program
/// without second derivatives is skipped.
randomized::Verdict
try_program(const Program&, const std::vector<int64_t>& mesh, bool twice);

} // namespace dtensor::second_derivatives
