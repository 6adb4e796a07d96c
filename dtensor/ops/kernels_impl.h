// SPDX-License-Identifier: BSD-3-Clause
// Selection of the kernels of an operator according to its rule.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <torch/library.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

struct Kernels {
  std::optional<torch::CppFunction> backend;
  std::optional<torch::CppFunction> above_autograd;
  std::shared_ptr<const OpInfo> info; // of these kernels
};

/// Returns true if LibTorch decomposes the operator above autograd.
bool is_composite(const c10::OperatorHandle& op);

/// Returns true if LibTorch's own kernels work: they call other operators.
bool keeps_its_kernel(const c10::OperatorHandle& op);

/// Makes the kernels for the current rules; empty where LibTorch's own kernels
/// work.
Kernels kernels_of(const c10::OperatorHandle& op);

/// Returns LibTorch's own kernel for a backend.
c10::SafeKernelFunction native_kernel(
    const c10::OperatorHandle& op,
    bool above_autograd);

/// Returns the kernel of aten::_to_copy at the key of the meta device. A copy
/// to the meta device has that key, which outranks the key of DTensors.
torch::CppFunction to_copy_kernel_of_meta(bool above_autograd);

} // namespace dtensor::detail
