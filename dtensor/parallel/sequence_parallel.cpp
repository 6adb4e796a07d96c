// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/sequence_parallel.h>

#include <dtensor/error.h>
#include <dtensor/parallel/hook_styles_impl.h>
#include <dtensor/parallel/layout_boundary_impl.h>
#include <dtensor/parallel/module_hooks.h>
#include <torch/nn/module.h>

namespace dtensor {
namespace {

using detail::BoundaryKind;
using detail::BoundaryLayouts;

void replicate_parameters(const StyleTarget& target) {
  for (auto& item : target.module.named_parameters(/*recurse=*/false)) {
    detail::distribute_parameter(item.value(), target, Replicate(), item.key());
  }
}

void hook(
    const StyleTarget& target,
    ModuleHooks& hooks,
    const BoundaryLayouts& layouts) {
  detail::mark_hooked(target, hooks, "SequenceParallel");
  hooks.add_forward_pre_hook([layouts, mesh = target.mesh](const auto& inputs) {
    if (!inputs.empty()) {
      *inputs[0] = detail::shared_input(*inputs[0], mesh, layouts.input);
    }
  });
  hooks.add_forward_hook([layouts](const auto& outputs) {
    for (auto* t : outputs) {
      *t = detail::to_output_layout(
          *t, layouts.output, layouts.use_local_output);
    }
  });
}

} // namespace

void SequenceParallel::apply(const StyleTarget& target) const {
  const auto shard = Shard(options_.sequence_dim);
  const BoundaryLayouts layouts{
      {.plain = shard, .desired = shard}, shard, options_.use_local_output};
  if (auto* hooks = dynamic_cast<ModuleHooks*>(&target.module)) {
    replicate_parameters(target);
    hook(target, *hooks, layouts);
    return;
  }
  auto parameters = target.module.named_parameters(/*recurse=*/false);
  auto* weight = parameters.find("weight");
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      weight != nullptr && weight->defined(),
      "SequenceParallel",
      detail::describe(target),
      ", a ",
      target.module.name(),
      ", has neither a weight nor hooks. Declare it with DTENSOR_MODULE "
      "instead of TORCH_MODULE (dtensor::nn::Dropout for torch::nn::Dropout).");
  replicate_parameters(target);
  detail::attach_boundary(*weight, BoundaryKind::kNorm, target, layouts);
}

} // namespace dtensor
