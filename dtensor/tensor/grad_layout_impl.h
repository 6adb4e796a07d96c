// SPDX-License-Identifier: BSD-3-Clause
// Gradients in their parameter's layout. Replicated parameters get Partial
// gradients if ranks computed on different data (norm weights under sequence
// parallelism). Those are reduced at the end of the backward pass, all in one
// collective.
#pragma once

#include <dtensor/api.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>

namespace dtensor::detail {

/// Redistributes gradients of this leaf DTensor to its own layout from now on.
/// May be called repeatedly.
DTENSOR_INTERNAL_API void keep_gradient_in_layout(const at::Tensor& parameter);

/// Hook that runs before the hook of keep_gradient_in_layout() and decides when
/// to call it.
struct HookBefore : torch::autograd::PostAccumulateGradHook {
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> next; // may be null
};

/// Throws ValueError for a parameter with a HookBefore, which depends on the
/// layout that the parameter has now.
DTENSOR_INTERNAL_API void check_not_replicated(
    const at::Tensor& parameter,
    const char* where);

} // namespace dtensor::detail
