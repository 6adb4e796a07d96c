// SPDX-License-Identifier: BSD-3-Clause
// Checks of gradients. The gradient of a DTensor must be a DTensor, and the
// gradient of a local tensor must be a plain tensor. A gradient layout must
// give every rank a local shard of the tensor's local shape.
//
// Autograd only checks shapes, and hooks and calls of backward() may pass any
// tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <vector>

namespace dtensor::detail {

/// Converts a gradient of a DTensor of `spec` to a DTensor. A plain tensor with
/// one element has the same meaning on every rank and is replicated. Throws
/// TypeError for other plain tensors, except under implicit replication.
DTENSOR_INTERNAL_API at::Tensor gradient_as_dtensor(
    const at::Tensor& grad,
    const Spec& spec);

/// Throws TypeError if the gradient of a local tensor is a DTensor.
DTENSOR_INTERNAL_API void check_plain_gradient(const at::Tensor& grad);

/// Installs a hook on the leaf `dtensor` that applies gradient_as_dtensor() to
/// every accumulated gradient.
void keep_gradient_distributed(const at::Tensor& dtensor);

/// Applies gradient_as_dtensor() to the current gradient of `leaf`.
void make_gradient_distributed(const at::Tensor& leaf);

/// Installs a hook on the node that computed `result` (or wrote it in place).
/// If the node returns a plain gradient for a DTensor operand, the hook
/// distributes the gradient in the operand's layout. Used for backward formulas
/// that create gradients from sizes alone. Every rank then has the full
/// gradient. `operands` holds the specs of the operands, null for plain
/// operands.
void make_gradients_distributed(
    const at::Tensor& result,
    std::vector<SpecPtr> operands);

/// Returns the normalized grad_placements of a tensor of `spec`. Throws
/// ValueError unless they give every rank the same local shape as `spec`.
Placements checked_grad_placements(
    const Spec& spec,
    PlacementsRef grad_placements,
    const char* where);

/// Replaces LibTorch's error message for a missing derivative of `grad`. `grad`
/// is a local gradient with a recorded graph.
void name_missing_derivative(const at::Tensor& grad);

// Gradients in the layout of their parameter. Replicated parameters get Partial
// gradients if ranks computed on different data (norm weights under sequence
// parallelism). Partial gradients are reduced at the end of the backward pass,
// all in one collective.

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
