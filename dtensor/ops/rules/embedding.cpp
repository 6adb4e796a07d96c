// SPDX-License-Identifier: BSD-3-Clause
// Embedding. The table may be sharded by columns (the output is sharded
// likewise) or by rows: a rank then looks up the tokens of its rows and writes
// zeros for the others, and the output is Partial(sum). Alternatively the
// indices are sharded.
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>

namespace dtensor {
namespace {

constexpr auto kSum = ReduceOp::kSum;

Strategies embedding(const OpCall& call, int64_t) {
  const auto indices_dim = call.inputs[1].dim();
  Strategies all = {
      {{Partial(kSum)}, {Shard(0), Replicate()}},
      {{Shard(indices_dim)}, {Shard(1), Replicate()}}};
  // scale_grad_by_freq counts the occurrences of a token in all indices.
  if (!call.bool_arg("scale_grad_by_freq")) {
    for (int64_t d = 0; d < indices_dim; ++d) {
      all.push_back({{Shard(d)}, {Replicate(), Shard(d)}});
    }
  }
  return all;
}

std::vector<OutputMeta> embedding_meta(const OpCall& call) {
  const auto& weight = *call.inputs[0].spec;
  DTENSOR_CHECK(
      weight.dim() == 2,
      "[{}] 'weight' must be 2-D, got {}. Reshape it.",
      call.name(),
      weight);
  const auto indices = call.inputs[1].sizes();
  Sizes sizes(indices.begin(), indices.end());
  sizes.push_back(weight.sizes()[1]);
  return {detail::dense(sizes, weight.dtype())};
}

// Keeps the spec of the weight where the local kernel must know which rows the
// rank holds.
void keep_weight_spec(const OpCall& call, Decision& decision) {
  decision.is_plain_call = !decision.layout_of(call, 0).is_sharded(0) &&
      numel(decision.layout_of(call, 1).local_sizes()) > 0 &&
      !call.bool_arg("sparse");
  if (decision.inputs[0] == nullptr && !decision.is_plain_call) {
    decision.inputs[0] = call.inputs[0].spec;
  }
}

// Returns the strategies of (grad_output, indices) -> gradient of weight.
Strategies dense_backward(const OpCall& call, int64_t) {
  const auto indices_dim = call.inputs[1].dim();
  Strategies all = {
      {{Shard(1)}, {Shard(indices_dim), Replicate()}},
      {{Partial(kSum)}, {Partial(kSum), Replicate()}}};
  if (!call.bool_arg("scale_grad_by_freq")) {
    for (int64_t d = 0; d < indices_dim; ++d) {
      all.push_back({{Partial(kSum)}, {Shard(d), Shard(d)}});
    }
  }
  return all;
}

std::vector<OutputMeta> dense_backward_meta(const OpCall& call) {
  const auto& grad = *call.inputs[0].spec;
  return {detail::dense(
      {call.int_arg("num_weights"), grad.sizes().back()}, grad.dtype())};
}

} // namespace

DTENSOR_RULES(embedding) {
  rules.dim_rule("embedding", embedding)
      .with_meta(embedding_meta)
      .with_localize(keep_weight_spec)
      .with_local_kernel(detail::boxed(detail::embedding_local))
      .as_region()
      .with_traits(
          {.boundary = BoundaryRole{
               .kind = BoundaryKind::kEmbedding, .input = 1, .parameter = 0}});
  rules.dim_rule("embedding_dense_backward", dense_backward)
      .with_meta(dense_backward_meta);
}

} // namespace dtensor
