// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention_parallel.h>

#include <dtensor/error.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/plan_changes_impl.h>
#include <torch/nn/modules/activation.h>

#include <string>
#include <vector>

namespace dtensor {
namespace {

using torch::nn::MultiheadAttentionImpl;

// q, k and v one after the other, and of each the heads of this rank.
const Placement kFused = StridedShard(0, 3);

MultiheadAttentionImpl& attention_of(const StyleTarget& target) {
  auto* attention = target.module.as<torch::nn::MultiheadAttention>();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      attention != nullptr,
      "AttentionParallel",
      "cannot style ",
      detail::describe(target),
      ", a ",
      target.module.name(),
      ": it does torch::nn::MultiheadAttention.");
  const auto heads = attention->options.num_heads();
  const auto ranks = target.mesh.size();
  DTENSOR_CHECK_VALUE(
      heads % ranks == 0,
      "AttentionParallel",
      detail::describe(target),
      " has ",
      heads,
      " heads, which do not divide by ",
      ranks,
      " ranks. Use a number of ranks that divides them.");
  return *attention;
}

struct Parameter {
  at::Tensor tensor;
  Placement layout;
  const char* name;
};

// Those that are there.
std::vector<Parameter> parameters_of(const MultiheadAttentionImpl& module) {
  std::vector<Parameter> found;
  for (const auto& parameter : std::vector<Parameter>{
           {module.in_proj_weight, kFused, "in_proj_weight"},
           {module.q_proj_weight, Shard(0), "q_proj_weight"},
           {module.k_proj_weight, Shard(0), "k_proj_weight"},
           {module.v_proj_weight, Shard(0), "v_proj_weight"},
           {module.in_proj_bias, kFused, "in_proj_bias"},
           {module.bias_k, Shard(2), "bias_k"},
           {module.bias_v, Shard(2), "bias_v"}}) {
    if (parameter.tensor.defined()) {
      found.push_back(parameter);
    }
  }
  return found;
}

} // namespace

void AttentionParallel::apply(const StyleTarget& target) const {
  auto& module = attention_of(target);
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    std::vector<at::Tensor> weights;
    for (const auto& [tensor, layout, name] : parameters_of(module)) {
      changes.distribute(tensor, target, layout, name);
      if (tensor.dim() == 2) {
        weights.push_back(tensor);
      }
    }
    // Heads stay where they are until out_proj adds them up.
    const detail::BoundaryLayouts layouts{
        .input = {.plain = Replicate(), .desired = Replicate()},
        .output = std::nullopt,
        .use_local_output = false,
        .rides_on_parts = true};
    changes.attach(weights, BoundaryKind::kLinear, target, layouts);
    auto out_proj = target.of_child("out_proj", *module.out_proj);
    out_proj.changes = &changes;
    RowwiseParallel({.output_layouts = options_.output_layouts,
                     .use_local_output = options_.use_local_output})
        .apply(out_proj);
  });
}

} // namespace dtensor
