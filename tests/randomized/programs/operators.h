// SPDX-License-Identifier: BSD-3-Clause
// Operators of programs: values, views and writes of one or two tensors.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace dtensor::programs {

enum class OperatorKind : uint8_t { kValue, kView, kWrite };

struct Operator {
  std::string name;
  OperatorKind kind;
  size_t arity;
  at::Tensor (*apply)(const std::vector<at::Tensor>&, const Numbers&);
};

const std::vector<Operator>& operators();

/// Returns null for steps that Machine itself implements.
const Operator* find_operator(const std::string& name);

} // namespace dtensor::programs
