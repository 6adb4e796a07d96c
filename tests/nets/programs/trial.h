// SPDX-License-Identifier: BSD-3-Clause
// One trial: a program on DTensors, on as many ranks as its mesh has, beside
// the same program on plain tensors. After each step all variables and all
// gradients are compared.
#pragma once

#include <map>
#include <string>

#include "program.h"

namespace dtensor::programs {

struct Verdict {
  bool different = false;
  std::string why;
  /// Steps that were refused in words of ours, by kind; both machines left
  /// them out.
  std::map<std::string, int64_t> refused;
};

Verdict try_program(const Program& program);

/// The same program without the steps that are not needed to see it fail.
Program shrink(Program program);

} // namespace dtensor::programs
