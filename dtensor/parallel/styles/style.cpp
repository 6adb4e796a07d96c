// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/style.h>

#include <dtensor/error.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <torch/nn/module.h>

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
