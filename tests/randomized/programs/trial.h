// SPDX-License-Identifier: BSD-3-Clause
// One trial: a program on DTensors, on as many ranks as its mesh has, and the
// same program on plain tensors. After each step, all variables and gradients
// are compared.
#pragma once

#include <tests/randomized/harness/verdict.h>

#include "program.h"

namespace dtensor::programs {

/// Tries a program. Both machines skip steps that errors of this library
/// refuse; each such step counts as a refusal. Programs of less than five steps
/// are skipped.
randomized::Verdict try_program(const Program& program);

/// Removes the steps that are not needed to reproduce a difference. Returns the
/// remaining program and its difference.
std::string shrink(Program program);

} // namespace dtensor::programs
