// SPDX-License-Identifier: BSD-3-Clause
// Operators for which LibTorch's formula creates a gradient from sizes and
// dtype alone: a plain tensor of zeros, even for a DTensor.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <torch/library.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

/// Returns the kernel above autograd of such an operator. It calls LibTorch's
/// own kernel and makes its node return distributed gradients. Empty for other
/// operators.
std::optional<torch::CppFunction> plain_gradient_kernel(
    const std::shared_ptr<const OpInfo>& info);

} // namespace dtensor::detail
