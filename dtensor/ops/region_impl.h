// SPDX-License-Identifier: BSD-3-Clause
// Operators that run as a region: LibTorch's own autograd records their local
// call (tensor/region_impl.h).
#pragma once

#include <ATen/core/stack.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Whether a region with this decision runs LibTorch's own autograd kernel on
/// the DTensors, without the nodes that make its inputs local.
bool takes_stock_autograd(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Runs it at the autograd key: inputs are redistributed and made local with
/// autograd, the operator runs with its own, results become DTensors again.
/// `keys` are those that it was called with.
void dispatch_region(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

} // namespace dtensor::detail
