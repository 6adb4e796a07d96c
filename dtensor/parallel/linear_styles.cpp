// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/linear_styles.h>

#include <dtensor/error.h>
#include <dtensor/parallel/plan_changes_impl.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace dtensor {
namespace {

using detail::BoundaryLayouts;

// Parameter layouts of a style, by kind of module.
struct ParameterLayouts {
  Placement linear_weight;
  Placement linear_bias;
  Placement embedding_weight;
  Placement linear_input;
};

void refuse(const StyleTarget& target, const char* style) {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      false,
      style,
      "cannot style ",
      detail::describe(target),
      ", a ",
      target.module.name(),
      ": it does torch::nn::Linear and torch::nn::Embedding. Style its "
      "children instead.");
}

void apply_to(
    const StyleTarget& target,
    const char* style,
    const ParameterLayouts& parameters,
    BoundaryLayouts layouts) {
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    if (auto* linear = target.module.as<torch::nn::Linear>()) {
      layouts.input.desired = parameters.linear_input;
      layouts.input.features = linear->weight.size(1);
      std::vector<at::Tensor> all = {linear->weight};
      changes.distribute(
          linear->weight, target, parameters.linear_weight, "weight");
      if (linear->bias.defined()) {
        changes.distribute(
            linear->bias, target, parameters.linear_bias, "bias");
        all.push_back(linear->bias);
      }
      changes.attach(all, BoundaryKind::kLinear, target, layouts);
    } else if (auto* embedding = target.module.as<torch::nn::Embedding>()) {
      layouts.input.desired = Replicate();
      changes.distribute(
          embedding->weight, target, parameters.embedding_weight, "weight");
      changes.attach(
          {embedding->weight}, BoundaryKind::kEmbedding, target, layouts);
    } else {
      refuse(target, style);
    }
  });
}

} // namespace

void ColwiseParallel::apply(const StyleTarget& target) const {
  apply_to(
      target,
      "ColwiseParallel",
      {Shard(0), Shard(0), Shard(1), Replicate()},
      {{.plain = options_.input_layouts, .desired = Replicate()},
       options_.output_layouts,
       options_.use_local_output});
}

void RowwiseParallel::apply(const StyleTarget& target) const {
  const int64_t chunks = options_.overlap_chunks;
  const bool is_linear = target.module.as<torch::nn::Linear>() != nullptr;
  DTENSOR_CHECK_VALUE(
      chunks == 1 || (chunks > 1 && is_linear),
      "RowwiseParallel",
      detail::describe(target),
      ", a ",
      target.module.name(),
      ", cannot be computed in ",
      chunks,
      " chunks. Set overlap_chunks to 1, or to more for a torch::nn::Linear.");
  apply_to(
      target,
      "RowwiseParallel",
      {Shard(1), Replicate(), Shard(0), Shard(-1)},
      {{.plain = options_.input_layouts.value_or(
            is_linear ? Shard(-1) : Replicate()),
        .desired = Replicate()},
       options_.output_layouts,
       options_.use_local_output,
       chunks});
}

} // namespace dtensor
