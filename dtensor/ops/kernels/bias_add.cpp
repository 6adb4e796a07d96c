// SPDX-License-Identifier: BSD-3-Clause
// output += bias, as torch::nn::Linear writes it: a plain local output and the
// bias of a styled module. The module's boundary adds it
// (ops/boundary/linear_bias.cpp).
#include <dtensor/ops/with_boundary_impl.h>

#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/torch_internals.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace dtensor::detail {

bool add_module_bias(torch::jit::Stack* stack) {
  const auto base = stack->size() - 3; // self, other, alpha
  at::Tensor self = (*stack)[base].toTensor();
  const at::Tensor bias = (*stack)[base + 1].toTensor();
  const auto* boundary = boundary_of(bias, BoundaryKind::kLinear);
  if (boundary == nullptr) {
    return false;
  }
  refresh_boundaries(bias, BoundaryKind::kLinear);
  if (!boundary->add_bias(self, bias, (*stack)[base + 2].toScalar())) {
    return false;
  }
  torch::jit::drop(*stack, 3);
  stack->emplace_back(std::move(self));
  return true;
}

namespace {

// Kernel of add_ above autograd, so that the addition is recorded on local
// tensors. All other calls go to LibTorch's own autograd kernel.
void add_(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (!add_module_bias(stack)) {
    static const auto stock =
        op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
    stock.callBoxed(op, keys, stack);
  }
}

} // namespace

static_assert(kDTensorAutogradKey == c10::DispatchKey::AutogradPrivateUse3);
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse3, m) {
  m.impl("add_.Tensor", torch::CppFunction::makeFromBoxedFunction<&add_>());
}

} // namespace dtensor::detail
