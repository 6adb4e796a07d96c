// SPDX-License-Identifier: BSD-3-Clause
// The kernels under an operator, as its rule wants them.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <torch/library.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

struct Kernels {
  std::optional<torch::CppFunction> backend;
  std::optional<torch::CppFunction> above_autograd;
  std::shared_ptr<const OpInfo> info; // that they have
};

/// Whether LibTorch decomposes it above autograd.
bool is_composite(const c10::OperatorHandle& op);

/// Whether LibTorch's own kernels serve: they call other operators.
bool keeps_its_kernel(const c10::OperatorHandle& op);

/// For the rules as they are now; none where LibTorch's own kernels serve.
Kernels kernels_of(const c10::OperatorHandle& op);

/// LibTorch's own kernel for a backend.
c10::SafeKernelFunction stock_kernel(
    const c10::OperatorHandle& op,
    bool above_autograd);

/// aten::_to_copy at the key of the meta device, which a copy to it has and
/// which outranks ours.
torch::CppFunction to_copy_kernel_of_meta(bool above_autograd);

} // namespace dtensor::detail
