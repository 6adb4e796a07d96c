// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <utility>

namespace dtensor::detail {

LocalKernel boxed(std::function<LocalKernelFunction> kernel) {
  return [kernel = std::move(kernel)](
             const c10::OperatorHandle& op,
             const Decision& decision,
             torch::jit::Stack* stack) {
    KernelArgs args(op, *stack);
    kernel(args, decision);
  };
}

} // namespace dtensor::detail
