// SPDX-License-Identifier: BSD-3-Clause
// A parameter's gradient lands in the parameter's layout. Replicated
// parameters get Partial gradients where ranks saw different data (norm
// weights under sequence parallelism); they are reduced once, at the end of
// the backward pass, all of them in one collective.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// From now on the gradient of this leaf DTensor lands in its own layout. May
/// be called again.
void keep_gradient_in_layout(const at::Tensor& parameter);

} // namespace dtensor::detail
