// SPDX-License-Identifier: BSD-3-Clause
// A plain call of each operator with a rule: small, and with a distinct size
// for each dimension.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::testing {

struct PlainCall {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};

/// Returns a call of the operator. Throws a runtime_error that names it if
/// there is none.
PlainCall plain_call_of(const c10::OperatorHandle& op);

} // namespace dtensor::testing
