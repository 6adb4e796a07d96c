// SPDX-License-Identifier: BSD-3-Clause
// Error messages for gradients that LibTorch cannot differentiate, such as
// those of its fused attention.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// Replaces LibTorch's error message for a missing derivative of `grad`. `grad`
/// is a local gradient with a recorded graph.
void name_missing_derivative(const at::Tensor& grad);

} // namespace dtensor::detail
