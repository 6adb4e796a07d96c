// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/style.h>

#include <dtensor/error.h>
#include <dtensor/parallel/boundary.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <torch/nn/module.h>

#include <memory>

namespace dtensor {

StyleTarget StyleTarget::child_target(
    const std::string& child_name,
    torch::nn::Module& child) const {
  return {
      child,
      detail::full_name(name, child_name),
      mesh,
      src_data_rank,
      changes,
      keep_dtensors,
      root_mesh,
      style};
}

std::string StyleTarget::describe() const {
  return detail::describe_typed(*this);
}

void apply_together(
    const StyleTarget& target,
    const std::function<void(const StyleTarget&)>& apply) {
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    StyleTarget recording = target;
    recording.changes = &changes;
    apply(recording);
  });
}

void set_parameter_placement(
    const StyleTarget& target,
    const at::Tensor& parameter,
    const Placement& placement,
    const std::string& name) {
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    changes.distribute(parameter, target, placement, name);
  });
}

void attach_boundary(
    const StyleTarget& target,
    at::TensorList parameters,
    BoundaryKind kind,
    const BoundaryOptions& options) {
  DTENSOR_CHECK_VALUE(
      !parameters.empty() && parameters[0].defined(),
      "[attach_boundary] the boundary of {} has no parameter to attach to. "
      "Pass the weight of the module.",
      detail::describe_module(target));
  const auto& weight = parameters[0];
  const bool has_features = kind == BoundaryKind::kLinear && weight.dim() == 2;
  const detail::BoundaryLayouts layouts{
      {.plain = options.input_layouts,
       .desired = options.desired_input_layouts,
       .features = has_features ? weight.size(1) : 0},
      options.output_layouts,
      options.use_local_output,
      /*overlap_chunks=*/1,
      options.output_fn ? std::make_shared<const OutputFn>(options.output_fn)
                        : nullptr};
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    changes.attach(parameters, kind, target, layouts);
  });
}

namespace detail {

StyleMesh style_mesh(const StyleTarget& target) {
  return target.root_mesh.defined()
      ? StyleMesh(
            target.root_mesh,
            target.root_mesh.dim_of(target.mesh.mesh_dim_names()[0]))
      : StyleMesh(target.mesh);
}

std::string describe_module(const StyleTarget& target) {
  return describe_module(target.name);
}

std::string describe_typed(const StyleTarget& target) {
  return describe_module(target) + " of type " + target.module.name();
}

ModuleHooks& hooks_of(const StyleTarget& target, const char* style) {
  auto* hooks = dynamic_cast<ModuleHooks*>(&target.module);
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      hooks != nullptr,
      "[{}] {} has no hooks. Declare it with DTENSOR_MODULE instead of "
      "TORCH_MODULE.",
      style,
      describe_typed(target));
  return *hooks;
}

} // namespace detail

} // namespace dtensor
