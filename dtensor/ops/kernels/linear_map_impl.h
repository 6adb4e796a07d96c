// SPDX-License-Identifier: BSD-3-Clause
// Linear functions of the local tensors of several ranks, such as an exchange
// of rows. The gradient of such a function is its adjoint, whose gradient is
// the function itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace dtensor::detail {

/// A linear function of local tensors, and its adjoint.
struct LinearMap : torch::CustomClassHolder {
  virtual at::Tensor apply(const at::Tensor& t) const = 0;
  virtual at::Tensor apply_adjoint(const at::Tensor& t) const = 0;
};
using LinearMapPtr = c10::intrusive_ptr<LinearMap>;

/// Returns map->apply(t), or `known` if this result has been computed already.
/// Records the gradient.
at::Tensor apply_linear(
    const at::Tensor& t,
    const LinearMapPtr& map,
    const at::Tensor& known = {});

/// Returns map->apply_adjoint(t). Records the gradient.
at::Tensor apply_adjoint(const at::Tensor& t, const LinearMapPtr& map);

} // namespace dtensor::detail
