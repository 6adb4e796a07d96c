// SPDX-License-Identifier: BSD-3-Clause
// The four differentiable steps between local tensors and DTensors, on specs.
// The public functions of tensor/dtensor.h are built on them, and so are
// operators whose local call runs with its own autograd.
//
// Gradient layouts (Python: the same): from_local's gradient arrives in
// `grad_placements`, by default the forward layout with Partial replaced by
// Replicate; to_local's gradient is taken to be in `grad_placements`, the same
// default; redistribute's gradient goes back to the source layout, where a
// Partial source gets a replicated gradient. What differentiates a gradient
// again arrives in the forward layout, Partial kept (Python: not; it is wrong).
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

#include <optional>

namespace dtensor::detail {

at::Tensor from_local_autograd(
    const at::Tensor& local,
    const SpecPtr& spec,
    const std::optional<Placements>& grad_placements = std::nullopt);

at::Tensor to_local_autograd(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

struct RedistributeMode {
  /// In which the gradient is communicated; default: that of the tensor.
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
  /// Whether the result, and the gradient, is waited for at first use.
  bool async_op = false;
  /// Whether the gradient alone is.
  bool async_backward = false;
  /// Whether it is part of the graph where nothing changes, too: the gradient
  /// then arrives in the layout of the tensor.
  bool always_records = false;
};

/// `dtensor` in layout and dtype `to` (same mesh and sizes), cast before it is
/// communicated; itself if it has them, unless the mode says otherwise. An
/// asynchronous one copies what peers are to read, unless nobody else holds
/// `dtensor` (moved in) or its part.
at::Tensor redistribute_autograd(
    at::Tensor dtensor,
    const SpecPtr& to,
    const RedistributeMode& mode = {});

/// What an operator on the DTensors `inputs`, which require gradients, results
/// in on a rank outside their mesh: nothing, and nothing flows back.
at::Tensor nothing_from(at::TensorList inputs, const SpecPtr& spec);

/// The layout of a tensor that every rank has, on the mesh of `like`.
SpecPtr replicated_spec(const Spec& like, const at::Tensor& whole);

} // namespace dtensor::detail
