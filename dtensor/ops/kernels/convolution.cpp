// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of a rank that has no samples or no channels, which LibTorch
// refuses, and operators that keep samples and channels apart.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

namespace dtensor {
namespace {

// Returns local zeros for a result; undefined if the result is.
at::Tensor zeros(const SpecPtr& result, const at::Tensor& like) {
  return result == nullptr
      ? at::Tensor()
      : at::zeros(result->local_sizes(), like.options().dtype(result->dtype()));
}

at::Tensor first_tensor(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  return torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor();
}

} // namespace

void detail::convolution_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  if (decision.is_plain_call) {
    op.callBoxed(stack);
    return;
  }
  KernelArgs args(op, *stack);
  auto output = zeros(decision.outputs[0], args.tensor("input"));
  if (const auto bias = args.tensor("bias"); bias.defined()) {
    std::vector<int64_t> shape(static_cast<size_t>(output.dim()), 1);
    shape[1] = bias.numel();
    output += bias.view(shape);
  }
  args.returns(output);
}

void detail::convolution_backward_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  if (decision.is_plain_call) {
    op.callBoxed(stack);
    return;
  }
  KernelArgs args(op, *stack);
  const auto grad_output = args.tensor("grad_output");
  auto bias = zeros(decision.outputs[2], grad_output);
  if (bias.defined()) {
    std::vector<int64_t> dims(static_cast<size_t>(grad_output.dim()));
    std::iota(dims.begin(), dims.end(), 0);
    dims.erase(dims.begin() + 1);
    bias = grad_output.sum(dims);
  }
  auto input = zeros(decision.outputs[0], grad_output);
  auto weight = zeros(decision.outputs[1], grad_output);
  args.returns(std::move(input), std::move(weight), std::move(bias));
}

void detail::zeros_if_empty(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto first = first_tensor(op, *stack);
  if (first.numel() > 0) {
    op.callBoxed(stack);
    return;
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (const auto& output : decision.outputs) {
    auto result = zeros(output, first);
    if (first.requires_grad() && result.defined() &&
        result.is_floating_point()) {
      result = result + first.sum(); // so that all ranks record the same graph
    }
    stack->emplace_back(std::move(result));
  }
}

} // namespace dtensor
