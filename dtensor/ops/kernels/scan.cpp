// SPDX-License-Identifier: BSD-3-Clause
// cumprod, cummax and cummin on a rank without elements. LibTorch's formulas
// then return early. The gradient would depend on other tensors than on ranks
// with elements, and second derivatives would communicate on some ranks only.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

namespace dtensor::detail {
namespace {

// Runs the operator, or lets `without` make its results for an empty input.
template <class Without>
void unless_empty(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    const Without& without) {
  KernelArgs args(op, *stack);
  const auto self = args.tensor("self");
  if (self.numel() > 0) {
    op.callBoxed(stack);
  } else {
    without(args, self);
  }
}

} // namespace

// Makes the gradient depend on the incoming gradient and on the input.
void cumprod_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  unless_empty(op, stack, [&](KernelArgs& args, const at::Tensor& self) {
    args.returns((self * self).to(decision.outputs[0]->dtype()));
  });
}

// Makes the gradient depend on the incoming gradient.
void running_extreme_local(
    const c10::OperatorHandle& op,
    const Decision&,
    torch::jit::Stack* stack) {
  unless_empty(op, stack, [](KernelArgs& args, const at::Tensor& self) {
    args.returns(self.clone(), at::empty_like(self, at::kLong));
  });
}

} // namespace dtensor::detail
