// SPDX-License-Identifier: BSD-3-Clause
// Convolutions without elements, which LibTorch refuses. All derivatives depend
// on the tensors on which those of the plain operator depend, so that a rank
// with an empty shard communicates as the other ranks do.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::detail {

/// Adds `bias`, one number for each channel, to `output` (N, C, space...) of
/// `input` and `weight`.
at::Tensor plus_bias(
    const at::Tensor& output,
    const at::Tensor& bias,
    const at::Tensor& input,
    const at::Tensor& weight);

/// Returns `zeros`, which has the shape of the result, plus the bias, which may
/// be undefined.
at::Tensor empty_convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& zeros);

/// Returns the gradients of the input, the weight and the bias. `bias` is
/// undefined if there is none.
std::vector<at::Tensor> empty_convolution_gradients(
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias);

} // namespace dtensor::detail
