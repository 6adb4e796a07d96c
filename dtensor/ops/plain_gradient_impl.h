// SPDX-License-Identifier: BSD-3-Clause
// Operators for which LibTorch's formula makes a gradient of sizes and dtype
// alone: a plain tensor of zeros, for a DTensor too.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <torch/library.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

/// The kernel above autograd of such an operator: LibTorch's own, after which
/// what its node gives back is distributed. Nothing for other operators.
std::optional<torch::CppFunction> plain_gradient_kernel(
    const std::shared_ptr<const OpInfo>& info);

} // namespace dtensor::detail
