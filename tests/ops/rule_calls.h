// SPDX-License-Identifier: BSD-3-Clause
// A plain call of each operator with a rule. The call is small, and each
// dimension has a distinct size.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/op_call.h>

#include <vector>

namespace dtensor::testing {

struct PlainCall {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};

/// Returns a call of the operator. Throws a runtime_error that names the
/// operator if there is none.
PlainCall plain_call_of(const c10::OperatorHandle& op);

/// Returns the metadata of plain results, including undefined ones.
std::vector<OutputMeta> metas_of(const torch::jit::Stack& results);

} // namespace dtensor::testing
