// SPDX-License-Identifier: BSD-3-Clause
// Products with special cases in LibTorch.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/ops/addbmm.h>

namespace dtensor {
namespace {

// Kernel of addbmm_, the only product that resizes self if the result has
// another shape.
void addbmm_in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
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
    detail::rewrap(self, detail::local_of(result), detail::spec_of(result));
  }
  args.returns(self);
}

} // namespace

// Broadcasts the bias if there is nothing to multiply, where LibTorch does not.
void detail::addmv_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto num_args = op.schema().arguments().size();
  auto& self = torch::jit::peek(*stack, 0, num_args);
  const auto sizes = decision.outputs[0]->local_sizes();
  if (op.schema().name().back() != '_' && self.toTensor().sizes() != sizes) {
    self = self.toTensor().expand(sizes);
  }
  op.callBoxed(stack);
}

DTENSOR_RULES(matmul_kernels) {
  rules.kernel("addbmm_", addbmm_in_place);
}

} // namespace dtensor
