// SPDX-License-Identifier: BSD-3-Clause
// One trial: a program on DTensors, on as many ranks as its mesh has, and the
// same program on plain tensors. After each step, all variables and gradients
// are compared.
#pragma once

#include <map>
#include <string>

#include "program.h"

namespace dtensor::programs {

struct Verdict {
  bool different = false;
  std::string why;
  /// Number of steps refused by our own errors, by kind. Both machines skip
  /// them.
  std::map<std::string, int64_t> refused;
};

Verdict try_program(const Program& program);

/// Removes the steps that are not needed to reproduce a failure.
Program shrink(Program program);

} // namespace dtensor::programs
