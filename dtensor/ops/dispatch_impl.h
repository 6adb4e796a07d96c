// SPDX-License-Identifier: BSD-3-Clause
// The one path of every operator: decide, redistribute the inputs, call the
// local operator, wrap the results.
#pragma once

#include <ATen/core/stack.h>
#include <dtensor/ops/op_info_impl.h>

namespace dtensor::detail {

/// Runs the operator on the DTensors on the stack, below autograd.
void dispatch(const OpInfo& info, torch::jit::Stack* stack);

/// The same without what rides on its parameters.
void dispatch_in_boundary(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail
