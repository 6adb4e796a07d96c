// SPDX-License-Identifier: BSD-3-Clause
// Dispatch, the path of every operator: decide, redistribute the inputs, call
// the local operator, wrap the results.
#pragma once

#include <ATen/core/stack.h>
#include <dtensor/ops/op_info_impl.h>

namespace dtensor::detail {

/// Runs the operator on the DTensors on the stack, below autograd.
void dispatch(const OpInfo& info, torch::jit::Stack* stack);

/// Runs the operator without applying the boundaries of its parameters.
void dispatch_in_boundary(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail
