// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
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
    return args.run_operator();
  }
  const bool is_real = !at::isComplexType(result.dtype());
  const auto converted = is_real ? at::real(self) : self.to(result.dtype());
  args.returns(converted.reshape(result.local_sizes()));
}

namespace {

// Runs the operator, or returns zeros in the same autograd graph as on other
// ranks. `zero` returns the number 0, given the empty operand.
void run_or_return_zeros(
    KernelArgs& args,
    const Decision& decision,
    at::Tensor (*zero)(const at::Tensor&)) {
  const auto first = args.at(0).toTensor();
  if (first.numel() > 0) {
    return args.run_operator();
  }
  args.returns();
  for (const auto& output : decision.outputs) {
    auto result = output == nullptr
        ? at::Tensor()
        : first.new_zeros(output->local_sizes(), output->dtype());
    if (first.requires_grad() && result.defined() &&
        (result.is_floating_point() || result.is_complex())) {
      result = result + zero(first);
    }
    args.stack().emplace_back(std::move(result));
  }
}

} // namespace

void zeros_if_empty(KernelArgs& args, const Decision& decision) {
  run_or_return_zeros(
      args, decision, [](const at::Tensor& first) { return first.sum(); });
}

void zeros_of_squares_if_empty(KernelArgs& args, const Decision& decision) {
  run_or_return_zeros(args, decision, [](const at::Tensor& first) {
    return (first * first).sum();
  });
}

} // namespace dtensor::detail
