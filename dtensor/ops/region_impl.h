// SPDX-License-Identifier: BSD-3-Clause
// Operators that run as a region: LibTorch's autograd records their local call
// (tensor/region_impl.h).
#pragma once

#include <ATen/core/stack.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Returns true if a region with this decision runs LibTorch's own autograd
/// kernel on the DTensors, without the nodes that make its inputs local.
bool uses_native_autograd(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Runs the operator at the autograd key: redistributes the inputs and makes
/// them local, both recorded by autograd, runs the operator with its own
/// autograd, and turns the results into DTensors. `keys` is the key set of the
/// call.
void dispatch_region(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

} // namespace dtensor::detail
