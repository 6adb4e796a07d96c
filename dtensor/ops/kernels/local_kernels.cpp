// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/ops/real.h>
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

void fft_of_empty_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  const auto& result = *decision.outputs[0];
  if (result.numel() == 0) {
    args.run_operator();
    return;
  }
  const bool is_real = !at::isComplexType(result.dtype());
  const auto converted = is_real ? at::real(self) : self.to(result.dtype());
  args.returns(converted.reshape(result.local_sizes()));
}

} // namespace dtensor::detail
