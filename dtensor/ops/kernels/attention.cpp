// SPDX-License-Identifier: BSD-3-Clause
// Attention cases that the plain operator cannot compute on local shards:
// dropout of the weights by global index (random/random.h), no elements, and
// keys and values of query heads that this rank does not hold.
//
// The gradients of a rank without elements must depend on the same tensors as
// those of other ranks, or have no derivative if those have none. Such a rank
// therefore calls the same kernel, on operands that are padded with zeros.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/layout/intervals_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// Arguments of the local attention.
struct Attention {
  explicit Attention(const KernelArgs& args)
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
    // The plain operator divides by the number of heads.
    const bool has_heads = query.dim() <= 2 || query.size(-3) != 0;
    return at::_scaled_dot_product_attention_math(
        query,
        key,
        values,
        mask,
        0,
        causal,
        std::nullopt,
        scale,
        grouped && has_heads);
  }

  // Computes the attention. The fused kernels reject tensors without elements.
  at::Tensor compute() const {
    return has_elements()
        ? at::scaled_dot_product_attention(
              query, key, value, mask, 0, causal, scale, grouped)
        : std::get<0>(compute_unfused(value));
  }

  bool has_elements() const {
    return query.numel() != 0 && key.numel() != 0 && value.numel() != 0;
  }
  bool has_gradient() const {
    return records(query) || records(key) || records(value) ||
        (mask && records(*mask));
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
  return indices_in(local_intervals(spec, spec.dim() - 3));
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
  const auto keep = sample_bernoulli(*spec, next_draw(spec->mesh()), 1 - p);
  weights = weights * keep * (p == 1 ? 0 : 1 / (1 - p));
  if (args.grouped && value.size(-3) != 0) {
    value = value.repeat_interleave(weights.size(-3) / value.size(-3), -3);
  }
  return weights.matmul(value);
}

// Gives the empty dimensions of `t` the size that they have in `full`, an
// output. The sequence is never sharded, nor are the features of queries, keys
// and masks.
at::Tensor
padded_operand(const at::Tensor& t, const Sizes& full, bool pads_features) {
  // The widths before and after each dimension, from the last.
  std::vector<int64_t> widths;
  for (int64_t d = -1; d >= -t.dim(); --d) {
    const bool may_be_sharded = d < -2 || (d == -1 && pads_features);
    widths.push_back(0);
    widths.push_back(
        may_be_sharded && t.size(d) == 0
            ? full[static_cast<size_t>(static_cast<int64_t>(full.size()) + d)]
            : 0);
  }
  // A mask that is false everywhere would give NaN.
  return at::constant_pad_nd(t, widths, t.scalar_type() == at::kBool ? 1 : 0);
}

// Computes the attention without dropout. Without elements, the operands are
// padded to the shape of the first rank, whose shard is not empty.
at::Tensor without_dropout(Attention args, const Spec& output) {
  if (args.has_elements() || !args.has_gradient()) {
    return args.compute();
  }
  const auto shape = output.mesh().shape();
  const auto full = local_sizes(
      output.sizes(), shape, output.placements(), Sizes(shape.size(), 0));
  args.query = padded_operand(args.query, full, /*pads_features=*/false);
  args.key = padded_operand(args.key, full, /*pads_features=*/false);
  args.value = padded_operand(args.value, full, /*pads_features=*/true);
  if (args.mask) {
    args.mask = padded_operand(*args.mask, full, /*pads_features=*/false);
  }
  auto result = args.compute();
  for (int64_t d = 0; d < output.dim(); ++d) {
    const auto held = output.local_sizes()[static_cast<size_t>(d)];
    result = held == result.size(d) ? result : result.narrow(d, 0, held);
  }
  return result;
}

} // namespace

int64_t attention_draws(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  return KernelArgs(op, *stack).real("dropout_p") > 0 ? 1 : 0;
}

void attention_local(KernelArgs& args, const Decision& decision) {
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
  args.returns(
      p > 0 ? with_dropout(local, output, p)
            : without_dropout(std::move(local), output));
}

} // namespace dtensor::detail
