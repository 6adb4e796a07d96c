// SPDX-License-Identifier: BSD-3-Clause
// Products with special cases in LibTorch.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/path/with_boundary_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_internals.h>
#include <torch/library.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/einsum_native.h>

namespace dtensor {
namespace {

using namespace detail;

// Kernel of addbmm_, the only product that resizes self if the result has
// another shape.
void addbmm_in_place(KernelArgs& args) {
  auto self = args.tensor("self");
  const auto result = at::addbmm(
      self,
      args.tensor("batch1"),
      args.tensor("batch2"),
      args.at("beta").toScalar(),
      args.at("alpha").toScalar());
  if (result.sizes() == self.sizes()) {
    self.copy_(result);
  } else {
    rewrap(self, local_of(result), spec_of(result));
  }
  args.returns(self);
}

} // namespace

void detail::einsum_of_one(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  args.returns(at::native::einsum(
      args.at("equation").toStringRef(), args.at("tensors").toTensorVector()));
}

// Broadcasts the bias if there is nothing to multiply. LibTorch does not
// broadcast in this case.
void detail::addmv_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  const auto sizes = decision.outputs[0]->local_sizes();
  if (args.base_name().back() != '_' && self.sizes() != sizes) {
    args.set("self", self.expand(sizes));
  }
  args.run_operator();
}

DTENSOR_RULES(matmul_kernels) {
  rules.kernel("addbmm_", with_args(addbmm_in_place));
}

} // namespace dtensor

namespace dtensor::detail {

// Handles output += bias, as torch::nn::Linear calls it, for a plain local
// output and the bias of a styled module. The module's boundary adds the bias
// (ops/boundary/linear_bias.cpp).
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
