// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/error.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/TensorUtils.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/view.h>

#include <vector>

namespace dtensor {

void detail::empty_split_local(KernelArgs& args, const Decision& decision) {
  const std::vector<int64_t> sizes(decision.outputs.size(), 0);
  args.returns(
      at::split_with_sizes(args.tensor("self"), sizes, args.integer("dim")));
}

// Views the local tensor, never copies it.
void detail::view_local(KernelArgs& args, const Decision& decision) {
  const auto sizes = decision.outputs[0]->local_sizes();
  const auto self = args.tensor("self");
  DTENSOR_CHECK(
      at::detail::computeStride(self.sizes(), self.strides(), sizes.vec())
          .has_value(),
      "[{}] this rank's local tensor, of shape {} and strides {}, cannot be "
      "viewed as {} without a copy. Call clone(at::MemoryFormat::Contiguous) "
      "first.",
      args.op().schema().name(),
      self.sizes(),
      self.strides(),
      at::IntArrayRef(sizes));
  args.returns(self.view(sizes));
}

// Reshapes the local tensor, possibly as a copy.
void detail::reshape_local(KernelArgs& args, const Decision& decision) {
  args.returns(args.tensor("self").reshape(decision.outputs[0]->local_sizes()));
}

namespace {

// Kernel of squeeze() and squeeze(dim), in place or not. It calls
// squeeze(dims), the only form in which the local call can name the dimensions
// of global size 1.
void squeeze_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  std::vector<int64_t> dims;
  const bool has_dim = schema.arguments().size() == 2;
  if (has_dim) {
    dims.push_back(torch::jit::pop(*stack).toInt());
  }
  auto self = torch::jit::pop(*stack).toTensor();
  if (!has_dim) {
    const auto all = identity_map(self.dim());
    dims.assign(all.begin(), all.end());
  }
  dims = detail::squeezed(self.sizes(), dims);
  const bool in_place = schema.name().back() == '_';
  stack->emplace_back(in_place ? self.squeeze_(dims) : at::squeeze(self, dims));
}

} // namespace

DTENSOR_RULES(squeeze) {
  rules.kernel("squeeze", squeeze_kernel);
  rules.kernel("squeeze.dim", squeeze_kernel);
}

} // namespace dtensor
