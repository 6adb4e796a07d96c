// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/style.h>

#include <dtensor/parallel/module_name_impl.h>
#include <dtensor/parallel/plan_changes_impl.h>

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

} // namespace dtensor
