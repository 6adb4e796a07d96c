// SPDX-License-Identifier: BSD-3-Clause
// Selection of the kernels of an operator according to its rule.
#pragma once

#include <dtensor/api.h>
#include <dtensor/ops/path/op_info_impl.h>

#include <torch/library.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// Returns `f(op, keys, stack)` as a kernel.
template <class F>
torch::CppFunction boxed_kernel(F f) {
  struct Kernel final : c10::OperatorKernel {
    explicit Kernel(F fn) : call(std::move(fn)) {}
    void operator()(
        const c10::OperatorHandle& op,
        c10::DispatchKeySet keys,
        torch::jit::Stack* stack) {
      call(op, keys, stack);
    }
    F call;
  };
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<Kernel>(std::move(f)));
}

struct Kernels {
  std::optional<torch::CppFunction> backend;
  std::optional<torch::CppFunction> above_autograd;
  std::shared_ptr<const OpInfo> info; // of these kernels
};

/// Returns true if LibTorch decomposes the operator above autograd.
bool is_composite(const c10::OperatorHandle& op);

/// Returns true if LibTorch's own kernels work on DTensors, because they call
/// other operators.
DTENSOR_INTERNAL_API bool keeps_its_kernel(const c10::OperatorHandle& op);

/// Makes the kernels for the current rules; empty where LibTorch's own kernels
/// work.
Kernels kernels_of(const c10::OperatorHandle& op);

/// Returns LibTorch's own kernel for a backend.
c10::SafeKernelFunction native_kernel(
    const c10::OperatorHandle& op,
    bool above_autograd);

/// Unboxed kernels of an operator (fast_kernel_impl.h). `make(info,
/// above_autograd)` sets the slot and returns the kernel.
struct FastOp {
  std::string_view name; // "aten::add"
  std::string_view overload;
  torch::CppFunction (*make)(std::shared_ptr<const OpInfo>, bool);
};

/// Returns the unboxed kernels of operator `name`; null if it has only boxed
/// kernels.
const FastOp* find_fast_op(const c10::OperatorName& name);

/// Returns the kernel of aten::_to_copy at the key of the meta device. A copy
/// to the meta device has this key, which precedes the key of DTensors.
torch::CppFunction to_copy_kernel_of_meta(bool above_autograd);

// Kernels of operators, installed when the library loads.

/// Replaces the operator's kernels by kernels for the current rules. Must not
/// be called while ranks run.
void reinstall_kernels(const c10::OperatorHandle& op);

/// Returns the OpInfo of the operator's kernels. For an operator that keeps
/// LibTorch's kernels, returns the OpInfo that its own kernels would have.
/// Callable from any thread.
DTENSOR_INTERNAL_API std::shared_ptr<const OpInfo> info_of(
    const c10::OperatorHandle& op);

// Operators whose gradient LibTorch's formula creates from sizes and dtype
// alone: a plain tensor of zeros, even for a DTensor.

/// Returns the kernel above autograd of such an operator. This kernel calls
/// LibTorch's own kernel and makes its node return distributed gradients. Empty
/// for other operators.
std::optional<torch::CppFunction> plain_gradient_kernel(
    const std::shared_ptr<const OpInfo>& info);

} // namespace dtensor::detail
