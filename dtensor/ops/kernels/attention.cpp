// SPDX-License-Identifier: BSD-3-Clause
// Attention cases that the plain operator cannot compute on local shards:
// dropout of the weights by global index (random/random.h), no elements, and
// keys and values of query heads that this rank does not hold.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/layout/intervals_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/random/sample_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

namespace dtensor {
namespace {

// Arguments of the local attention.
struct Attention {
  explicit Attention(const detail::KernelArgs& args)
      : query(args.tensor("query")),
        key(args.tensor("key")),
        value(args.tensor("value")),
        mask(args.optional_tensor("attn_mask")),
        causal(args.flag("is_causal")),
        grouped(args.flag("enable_gqa")) {
    if (!args.is_none("scale")) {
      scale = args.real("scale");
    }
  }

  std::tuple<at::Tensor, at::Tensor> compute_unfused(
      const at::Tensor& values) const {
    return at::_scaled_dot_product_attention_math(
        query, key, values, mask, 0, causal, std::nullopt, scale, grouped);
  }

  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
  bool causal;
  bool grouped;
  std::optional<double> scale;
};

std::vector<int64_t> heads_here(const Spec& spec) {
  return detail::indices_in(local_intervals(spec, spec.dim() - 3));
}

// Selects from `held`, the local heads of keys or values in `layout`, the head
// that each local query head uses.
at::Tensor heads_of_queries(
    const at::Tensor& held,
    const Spec& layout,
    const Spec& output) {
  const auto all = output.sizes()[static_cast<size_t>(output.dim() - 3)];
  const auto kept = layout.sizes()[static_cast<size_t>(layout.dim() - 3)];
  const auto here = heads_here(layout);
  std::vector<int64_t> positions;
  for (const auto query : heads_here(output)) {
    const auto head = query / (all / kept);
    const auto found = std::ranges::find(here, head);
    TORCH_INTERNAL_ASSERT(found != here.end(), layout, " for ", output);
    positions.push_back(found - here.begin());
  }
  return held.index_select(
      -3, at::tensor(positions, at::kLong).to(held.device()));
}

// Returns the weights of the plain operator, dropped by global index, times the
// values.
at::Tensor with_dropout(const Attention& args, const Spec& output, double p) {
  auto value = args.value;
  auto weights = std::get<1>(args.compute_unfused(
      value.narrow(-1, 0, std::min<int64_t>(1, value.size(-1)))));
  Sizes sizes(output.sizes().begin(), output.sizes().end());
  sizes.back() = weights.size(-1);
  const auto spec = Spec::make(
      output.mesh(), output.placements(), sizes, weights.scalar_type());
  const auto keep =
      detail::sample_bernoulli(*spec, detail::next_draw(spec->mesh()), 1 - p);
  weights = weights * keep * (p == 1 ? 0 : 1 / (1 - p));
  if (args.grouped && value.size(-3) != 0) {
    value = value.repeat_interleave(weights.size(-3) / value.size(-3), -3);
  }
  return weights.matmul(value);
}

// Computes the attention without dropout. The fused kernels reject tensors
// without elements.
at::Tensor without_dropout(const Attention& args) {
  return args.query.numel() == 0 || args.key.numel() == 0
      ? std::get<0>(args.compute_unfused(args.value))
      : at::scaled_dot_product_attention(
            args.query,
            args.key,
            args.value,
            args.mask,
            0,
            args.causal,
            args.scale,
            args.grouped);
}

} // namespace

int64_t detail::attention_draws(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  return KernelArgs(op, *stack).real("dropout_p") > 0 ? 1 : 0;
}

void detail::attention_local(KernelArgs& args, const Decision& decision) {
  const Spec& output = *decision.outputs[0];
  const auto p = args.real("dropout_p");
  Attention local(args);
  const auto& key = decision.inputs[1];
  const auto& value = decision.inputs[2];
  if (local.grouped && key != nullptr && value != nullptr) {
    local.key = heads_of_queries(local.key, *key, output);
    local.value = heads_of_queries(local.value, *value, output);
    local.grouped = false;
  }
  if (local.query.dim() > 2 && local.query.size(-3) == 0) {
    local.grouped = false; // the plain operator divides by the number of heads
  }
  args.returns(p > 0 ? with_dropout(local, output, p) : without_dropout(local));
}

} // namespace dtensor
