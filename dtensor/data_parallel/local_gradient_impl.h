// SPDX-License-Identifier: BSD-3-Clause
// What a rank has of a gradient before ranks that see other data are summed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

struct LocalGradient {
  /// Undefined if this rank has none.
  at::Tensor value;
  /// Whether it is a term of a sum over the one dimension of tensor
  /// parallelism, along which the parameter is replicated. parallelize_module
  /// takes that sum at the end of the backward pass, for all parameters at
  /// once (parallel/grad_layout_impl.h).
  bool is_term = false;
};

/// Of a parameter that operators have in layout `whole`; null: as a plain
/// tensor. Partial terms are summed in `dtype`, if that is wider than their
/// own. Throws TypeError for a gradient of the other sort.
LocalGradient local_gradient(
    const at::Tensor& grad,
    const SpecPtr& whole,
    at::ScalarType dtype);

/// The layout of the gradient of a parameter of `spec`, whose last dimension is
/// that of tensor parallelism.
SpecPtr gradient_layout(const SpecPtr& spec, bool is_term);

} // namespace dtensor::detail
