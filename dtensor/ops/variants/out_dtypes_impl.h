// SPDX-License-Identifier: BSD-3-Clause
// Dtypes that op.out(..., out) accepts for `out`: those of the plain operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Throws unless the dtype of `result` converts to that of `out`.
void check_can_cast(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result);

/// Lets the operator itself check the dtypes of its outs, on tensors without
/// the arguments' data. Some operators accept an out of any dtype to which the
/// result converts. Other operators accept only the result's dtype. Meta
/// kernels do not check all of this, so the operator is also called on ones. It
/// may reject ones as values, for any dtype of out, so calls with both dtypes
/// are compared. `results` are those of the call; throws the operator's error.
void ask_for_dtype(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& arguments,
    const std::vector<at::Tensor>& outs,
    const std::vector<at::Tensor>& results);

} // namespace dtensor::detail
