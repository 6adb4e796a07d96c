// SPDX-License-Identifier: BSD-3-Clause
// A parameter's gradient lands in the parameter's layout. Replicated
// parameters get Partial gradients where ranks saw different data (norm
// weights under sequence parallelism); they are reduced once, at the end of
// the backward pass, all of them in one collective.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>

namespace dtensor::detail {

/// From now on the gradient of this leaf DTensor lands in its own layout. May
/// be called again.
void keep_gradient_in_layout(const at::Tensor& parameter);

/// A hook that stands in front of that, and calls it when it likes.
struct HookBefore : torch::autograd::PostAccumulateGradHook {
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> next; // or null
};

/// Throws ValueError for a parameter that has one: what stands in front was
/// made for the layout that the parameter has.
void check_may_be_distributed(const at::Tensor& parameter, const char* where);

} // namespace dtensor::detail
