// SPDX-License-Identifier: BSD-3-Clause
// A plain call of each operator that has a rule: small, and of a shape in which
// no dimension could be taken for another.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::testing {

struct PlainCall {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};

/// Throws a runtime_error that names the operator if there is no such call.
PlainCall plain_call_of(const c10::OperatorHandle& op);

} // namespace dtensor::testing
