// SPDX-License-Identifier: BSD-3-Clause
// LocalGradient: this rank's gradient before the reduction over data-parallel
// ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

struct LocalGradient {
  /// Gradient; undefined if this rank has none.
  at::Tensor value;
  /// True if the gradient is Partial(sum) on the mesh dimension of tensor
  /// parallelism, along which the parameter is replicated. parallelize_module
  /// reduces such gradients at the end of the backward pass, for all parameters
  /// at once (tensor/gradient_impl.h).
  bool is_partial_sum_term = false;
};

/// Converts a gradient to layout `unsharded`, the layout in which operators
/// have the parameter (null: a plain tensor). Partial values are reduced in
/// `dtype` if it is wider than their own dtype. Throws TypeError for a plain
/// gradient of a DTensor, or a DTensor gradient of a plain tensor.
LocalGradient local_gradient(
    const at::Tensor& grad,
    const SpecPtr& unsharded,
    at::ScalarType dtype);

/// Returns the layout of the gradient of a parameter with layout `spec`, whose
/// last mesh dimension is that of tensor parallelism.
SpecPtr gradient_layout(const SpecPtr& spec, bool is_partial_sum_term);

} // namespace dtensor::detail
