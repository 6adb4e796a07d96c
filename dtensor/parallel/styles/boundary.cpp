// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/boundary.h>

#include <dtensor/error.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>

#include <memory>

namespace dtensor {

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

} // namespace dtensor
