// SPDX-License-Identifier: BSD-3-Clause
// The operators of programs: values, views and writes of one or two tensors.
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

/// Null for the steps that only a machine knows.
const Operator* find_operator(const std::string& name);

} // namespace dtensor::programs
