// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/sequence_parallel.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>

namespace dtensor {
namespace {

using detail::BoundaryLayouts;

void replicate_parameters(
    detail::PlanChanges& changes,
    const StyleTarget& target) {
  for (auto& item : target.module.named_parameters(/*recurse=*/false)) {
    changes.distribute(item.value(), target, Replicate(), item.key());
  }
}

// Hook after forward: brings the outputs to their layout.
ModuleHooks::Hook after_forward(
    const StyleTarget& target,
    const BoundaryLayouts& layouts) {
  return [layouts,
          where = detail::style_mesh(target),
          use_local = layouts.use_local_output && !target.keep_dtensors,
          module = detail::describe_module(target)](const auto& outputs) {
    for (auto* t : outputs) {
      if (!t->defined()) {
        continue;
      }
      DTENSOR_CHECK_TYPE(
          is_dtensor(*t),
          "[SequenceParallel] {} returned a plain tensor: {}. Compute the "
          "output from the input, which is a DTensor, or convert the output "
          "with from_local().",
          module,
          shape_text(t->scalar_type(), t->sizes()));
      *t = detail::to_output_layout(*t, where, layouts.output, use_local);
    }
  };
}

void hook(
    detail::PlanChanges& changes,
    const StyleTarget& target,
    ModuleHooks& hooks,
    const BoundaryLayouts& layouts) {
  changes.hook(
      target,
      hooks,
      "SequenceParallel",
      "input and output " + to_string(layouts.input.desired),
      [converter = detail::Converter(
           detail::style_mesh(target),
           layouts.input,
           changes.siblings_of(target, layouts.input))](const auto& inputs) {
        if (!inputs.empty() && inputs[0]->defined()) {
          if (C10_UNLIKELY(detail::replicas_observed())) {
            converter.notify(detail::ReplicaKind::kInput, *inputs[0]);
          }
          *inputs[0] = converter.convert(*inputs[0]);
        }
      },
      after_forward(target, layouts));
}

void ride(
    detail::PlanChanges& changes,
    const StyleTarget& target,
    const BoundaryLayouts& layouts,
    bool is_fused_norm) {
  auto parameters = target.module.named_parameters(/*recurse=*/false);
  const bool has_weight = parameters.contains("weight");
  const bool is_norm =
      is_fused_norm || target.module.as<torch::nn::LayerNorm>() != nullptr;
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      is_norm && has_weight,
      "[SequenceParallel] {} has no hooks{}. Declare it with DTENSOR_MODULE "
      "instead of TORCH_MODULE (dtensor::hooked::Dropout for "
      "torch::nn::Dropout, dtensor::hooked::LayerNorm){}",
      detail::describe_typed(target),
      is_norm ? " and no weight" : ", and is not a torch::nn::LayerNorm",
      is_norm ? "."
              : ", or set fused_norm if its weight goes into torch::rms_norm "
                "or torch::layer_norm.");
  replicate_parameters(changes, target);
  changes.attach(parameters.values(), BoundaryKind::kNorm, target, layouts);
}

} // namespace

void SequenceParallel::apply(const StyleTarget& target) const {
  const auto shard = Shard(options_.sequence_dim);
  const BoundaryLayouts layouts{
      {.plain = shard, .desired = shard}, shard, options_.use_local_output};
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    if (auto* hooks = dynamic_cast<ModuleHooks*>(&target.module)) {
      replicate_parameters(changes, target);
      hook(changes, target, *hooks, layouts);
    } else {
      ride(changes, target, layouts, options_.fused_norm);
    }
  });
}

} // namespace dtensor
