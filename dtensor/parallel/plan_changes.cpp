// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/plan_changes_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/tied_modules_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// A parameter of the target has a boundary already.
void check_may_share(
    const LayoutBoundary& other,
    const StyleTarget& target,
    const BoundaryLayouts& layouts) {
  DTENSOR_CHECK(
      other.module() != &target.module,
      "parallelize_module",
      describe(target),
      " has a style already. Style a module once.");
  DTENSOR_CHECK(
      other.layouts() == layouts && other.where() == StyleMesh::of(target),
      "parallelize_module",
      describe(target),
      " is tied to module \"",
      other.module_name(),
      "\" and styled differently. Give both the same style.");
}

} // namespace

PlanChanges::Parameter& PlanChanges::change_of(const at::Tensor& parameter) {
  const auto known =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const auto& p) {
        return p.tensor.is_same(parameter);
      });
  if (known != parameters_.end()) {
    return *known;
  }
  std::shared_ptr<Boundaries> boundaries;
  if (is_dtensor(parameter) && meta_of(parameter).boundaries != nullptr) {
    boundaries = std::make_shared<Boundaries>(*meta_of(parameter).boundaries);
  } else {
    boundaries = std::make_shared<Boundaries>();
  }
  parameters_.push_back({parameter, nullptr, {}, std::move(boundaries)});
  return parameters_.back();
}

void PlanChanges::distribute(
    const at::Tensor& parameter,
    const StyleTarget& target,
    const Placement& placement,
    const std::string& what) {
  auto& change = change_of(parameter);
  const auto where = StyleMesh::of(target);
  const auto wanted = Spec::make(
      where.mesh,
      where.alone(placement),
      parameter.sizes(),
      parameter.strides(),
      parameter.scalar_type(),
      "parallelize_module");
  const auto spec = is_dtensor(parameter) ? spec_of(parameter) : change.spec;
  if (spec != nullptr) {
    DTENSOR_CHECK(
        wanted == spec,
        "parallelize_module",
        describe(target),
        ": its ",
        what,
        " is a DTensor already, ",
        *spec,
        ", and the style wants ",
        to_string(placement),
        " on ",
        where.mesh,
        ". Tied parameters need one layout; style a module once.");
    return;
  }
  change.spec = wanted;
  change.src_data_rank = target.src_data_rank;
}

void PlanChanges::attach(
    at::TensorList parameters,
    BoundaryKind kind,
    const StyleTarget& target,
    BoundaryLayouts layouts) {
  layouts.use_local_output &= !target.keep_dtensors;
  if (target.root_mesh.defined()) {
    layouts.overlap_chunks = 1;
  }
  std::shared_ptr<const LayoutBoundary> boundary;
  bool is_tied = false;
  for (const auto& parameter : parameters) {
    auto& all = *change_of(parameter).boundaries;
    if (const auto& old = all.get(kind)) {
      check_may_share(
          static_cast<const LayoutBoundary&>(*old), target, layouts);
      is_tied = true; // the other's boundary prepares the input
      continue;
    }
    if (boundary == nullptr) {
      boundary = std::make_shared<LayoutBoundary>(
          target.name,
          &target.module,
          StyleMesh::of(target),
          layouts,
          is_tied ? Sibling() : join(target, layouts.input));
      styles_.push_back({&target.module, kind, boundary});
    }
    all.set(kind, boundary);
  }
}

void PlanChanges::hook(
    const StyleTarget& target,
    ModuleHooks& hooks,
    const std::string& style,
    ModuleHooks::Hook before,
    ModuleHooks::Hook after) {
  const bool noted =
      std::any_of(hooks_.begin(), hooks_.end(), [&](const auto& h) {
        return h.hooks == &hooks && h.style == style;
      });
  DTENSOR_CHECK(
      !noted && !hooks.has_style(style),
      "parallelize_module",
      describe(target),
      " has the style ",
      style,
      " already. Style a module once.");
  hooks_.push_back(
      {&hooks, style, target.name, std::move(before), std::move(after)});
}

Sibling PlanChanges::join(
    const StyleTarget& target,
    const InputLayouts& layouts) {
  if (target.name.empty()) {
    return {};
  }
  const auto dot = target.name.rfind('.');
  const auto parent =
      dot == std::string::npos ? "" : target.name.substr(0, dot);
  auto family =
      std::find_if(families_.begin(), families_.end(), [&](const auto& f) {
        return f.parent == parent && f.layouts == layouts;
      });
  if (family == families_.end()) {
    families_.push_back({parent, layouts, std::make_shared<SiblingGroup>()});
    family = std::prev(families_.end());
  }
  return {family->group, family->group->members++};
}

void PlanChanges::carry_out() {
  for (auto& [parameter, spec, src_data_rank, boundaries] : parameters_) {
    if (spec != nullptr) {
      distribute_parameter(
          parameter, spec->mesh(), spec->placements(), src_data_rank);
    }
    // None at all ride on one that a style has only distributed.
    if (boundaries->get_any(BoundaryKind::kLinear) != nullptr) {
      meta_of(parameter).boundaries = std::move(boundaries);
    }
  }
  for (auto& [module, kind, boundary] : styles_) {
    note_styled(*module, kind, std::move(boundary));
  }
  for (auto& [hooks, style, module_name, before, after] : hooks_) {
    hooks->mark_styled(style, module_name);
    if (before) {
      hooks->add_forward_pre_hook(std::move(before));
    }
    if (after) {
      hooks->add_forward_hook(std::move(after));
    }
  }
}

} // namespace dtensor::detail
