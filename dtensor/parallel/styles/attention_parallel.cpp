// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention_parallel.h>

#include <dtensor/error.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <torch/nn/modules/activation.h>

#include <vector>

namespace dtensor {
namespace {

using torch::nn::MultiheadAttentionImpl;

MultiheadAttentionImpl& attention_of(const StyleTarget& target) {
  auto* attention = target.module.as<torch::nn::MultiheadAttention>();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      attention != nullptr,
      "[AttentionParallel] cannot style {}: only torch::nn::MultiheadAttention "
      "is supported. Give the style to such a module.",
      detail::describe_typed(target));
  return *attention;
}

struct Parameter {
  at::Tensor tensor;
  Placement layout;
  const char* name;
};

// Returns the existing parameters and their placements, which never split a
// head.
std::vector<Parameter> parameters_of(const MultiheadAttentionImpl& module) {
  const auto unit = module.head_dim;
  // Fused q, k and v are consecutive. Each rank has its heads of all three.
  const auto fused = StridedShard(0, 3, unit);
  const auto rows = Shard(0, unit);
  std::vector<Parameter> found;
  for (const auto& parameter : std::vector<Parameter>{
           {module.in_proj_weight, fused, "in_proj_weight"},
           {module.q_proj_weight, rows, "q_proj_weight"},
           {module.k_proj_weight, rows, "k_proj_weight"},
           {module.v_proj_weight, rows, "v_proj_weight"},
           {module.in_proj_bias, fused, "in_proj_bias"},
           {module.bias_k, Shard(2, unit), "bias_k"},
           {module.bias_v, Shard(2, unit), "bias_v"}}) {
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
    // Outputs stay sharded by heads until out_proj sums over them.
    const detail::BoundaryLayouts layouts{
        .input = {.plain = Replicate(), .desired = Replicate()},
        .output = std::nullopt,
        .use_local_output = false,
        .applies_to_rows = true};
    changes.attach(weights, BoundaryKind::kLinear, target, layouts);
    auto out_proj = target.child_target("out_proj", *module.out_proj);
    out_proj.changes = &changes;
    RowwiseParallel({.output_layouts = options_.output_layouts,
                     .use_local_output = options_.use_local_output,
                     .multiple_of = module.head_dim})
        .apply(out_proj);
  });
}

} // namespace dtensor
