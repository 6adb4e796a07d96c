// SPDX-License-Identifier: BSD-3-Clause
// Gradients that LibTorch cannot differentiate, as those of its fused
// attention.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// A local gradient that a graph was recorded for. If LibTorch has no formula
/// to go on, whoever differentiates it is told so in our words.
void name_missing_derivative(const at::Tensor& grad);

} // namespace dtensor::detail
