// SPDX-License-Identifier: BSD-3-Clause
// The differentiable conversions between local tensors and DTensors, on specs.
// The public functions of tensor/dtensor.h are built on these conversions, as
// are operators whose local call is recorded by autograd.
//
// Gradient layouts are those of Python, with one exception. from_local's
// gradient arrives in `grad_placements`, by default the forward layout with
// Partial replaced by Replicate. to_local's gradient is assumed to be in
// `grad_placements`, with the same default. redistribute's gradient returns to
// the source layout; a Partial source gets a replicated gradient. The exception
// is the gradient of a gradient: it arrives in the forward layout with Partial
// kept. (Python also replaces Partial in this case, so its second derivatives
// are wrong.)
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <optional>

namespace dtensor::detail {

/// Returns the DTensor of `local`. `values` are its values if they differ from
/// the values of `local`. `local` receives the gradient in either case.
at::Tensor from_local_autograd(
    const at::Tensor& local,
    const SpecPtr& spec,
    const std::optional<Placements>& grad_placements = std::nullopt,
    const at::Tensor& values = {});

at::Tensor to_local_autograd(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

struct RedistributeMode {
  /// The dtype in which the gradient is communicated; default: the tensor's
  /// dtype.
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
  /// Makes the result, and its gradient, asynchronous: first use waits.
  bool async_op = false;
  /// Makes only the gradient asynchronous.
  bool async_backward = false;
  /// Records a node even if layout and dtype do not change, so that the
  /// gradient arrives in the layout of the tensor.
  bool always_records = false;
};

/// Returns `dtensor` in layout and dtype `to` (same mesh and sizes). Casts
/// before communicating. Returns `dtensor` itself if nothing changes, unless
/// `mode` requires a node. An asynchronous redistribution copies data that
/// other ranks read, unless the caller holds the only reference to `dtensor`
/// (moved in) or to its local tensor.
DTENSOR_INTERNAL_API at::Tensor redistribute_autograd(
    at::Tensor dtensor,
    const SpecPtr& to,
    const RedistributeMode& mode = {});

/// Returns the result of an operator on a rank outside the mesh of `inputs`,
/// which are DTensors that require gradients. The result is empty, and no
/// gradient flows back.
at::Tensor empty_on_other_ranks(at::TensorList inputs, const SpecPtr& spec);

/// Returns the replicated layout of `plain` on the mesh of `like`. Throws
/// NotImplementedError if `plain` is not dense.
SpecPtr replicated_spec(const Spec& like, const at::Tensor& plain);

/// Returns `plain` as a replicated DTensor on the mesh of `like`. The gradient
/// of `plain` is the sum of what the ranks contribute to it.
at::Tensor replicated_on_mesh(const Spec& like, const at::Tensor& plain);

} // namespace dtensor::detail
