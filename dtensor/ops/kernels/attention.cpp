// SPDX-License-Identifier: BSD-3-Clause
// Attention that the plain operator does not compute on a rank's part: dropout
// of the weights by global index (random/random.h), and no elements.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>

#include <algorithm>

namespace dtensor {
namespace {

// Weights of the plain operator, dropped by global index, times the values.
at::Tensor
with_dropout(const detail::KernelArgs& args, const Spec& output, double p) {
  const auto query = args.tensor("query");
  auto value = args.tensor("value");
  const auto scale =
      args.is_none("scale") ? std::nullopt : std::optional(args.real("scale"));
  auto weights = std::get<1>(at::_scaled_dot_product_attention_math(
      query,
      args.tensor("key"),
      value.narrow(-1, 0, std::min<int64_t>(1, value.size(-1))),
      args.optional_tensor("attn_mask"),
      0,
      args.flag("is_causal"),
      std::nullopt,
      scale,
      args.flag("enable_gqa")));
  Sizes sizes(output.sizes().begin(), output.sizes().end());
  sizes.back() = weights.size(-1);
  const auto spec = Spec::make(
      output.mesh(), output.placements(), sizes, weights.scalar_type());
  const auto keep = detail::sample_bernoulli(*spec, detail::next_draw(), 1 - p);
  weights = weights * keep * (p == 1 ? 0 : 1 / (1 - p));
  if (args.flag("enable_gqa") && value.size(-3) != 0) {
    value = value.repeat_interleave(weights.size(-3) / value.size(-3), -3);
  }
  return weights.matmul(value);
}

// The fused kernels refuse tensors without elements.
at::Tensor of_no_elements(const detail::KernelArgs& args) {
  return std::get<0>(at::_scaled_dot_product_attention_math(
      args.tensor("query"),
      args.tensor("key"),
      args.tensor("value"),
      args.optional_tensor("attn_mask"),
      0,
      args.flag("is_causal"),
      std::nullopt,
      args.is_none("scale") ? std::nullopt : std::optional(args.real("scale")),
      args.flag("enable_gqa")));
}

} // namespace

void detail::attention_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const Spec& output = *decision.outputs[0];
  if (decision.is_plain_call) {
    op.callBoxed(stack);
    stack->back() = detail::in_memory_order(
        std::move(stack->back()).toTensor(), output.strides());
    return;
  }
  detail::KernelArgs args(op, *stack);
  const auto p = args.real("dropout_p");
  args.returns(detail::in_memory_order(
      p > 0 ? with_dropout(args, output, p) : of_no_elements(args),
      output.strides()));
}

} // namespace dtensor
