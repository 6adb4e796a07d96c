// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/plan/plan_changes_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/tensor/meta_impl.h>

#include <torch/nn/modules/linear.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Checks a parameter of the target that already has a boundary.
void check_may_share(
    const Boundary& other,
    const StyleTarget& target,
    const BoundaryLayouts& layouts) {
  DTENSOR_CHECK(
      other.module() != &target.module,
      "[parallelize_module] {} has a style already. Style a module once.",
      describe_module(target));
  DTENSOR_CHECK(
      other.layouts() == layouts && other.where() == style_mesh(target),
      "[parallelize_module] {} is tied to module \"{}\" and styled "
      "differently. Give both the same style.",
      describe_module(target),
      other.module_name());
}

} // namespace

SpecPtr PlanChanges::Parameter::layout() const {
  return is_dtensor(tensor) ? spec_of(tensor) : spec;
}

// Returns the pending change of a parameter. Copies its boundaries, so that the
// parameter keeps its own boundaries until carry_out().
PlanChanges::Parameter& PlanChanges::change_of(const at::Tensor& parameter) {
  const auto [known, is_new] =
      places_.try_emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
  if (!is_new) {
    return parameters_[known->second];
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
  const auto where = style_mesh(target);
  const auto wanted = Spec::make(
      where.mesh,
      where.alone(placement),
      parameter.sizes(),
      parameter.strides(),
      parameter.scalar_type(),
      "parallelize_module");
  if (const auto spec = change.layout(); spec != nullptr) {
    DTENSOR_CHECK(
        wanted == spec,
        "[parallelize_module] {}: its {} is already a DTensor, {}, but the "
        "style requires {} on {}. Give tied parameters one layout, and style "
        "a module once.",
        describe_module(target),
        what,
        *spec,
        to_string(placement),
        where.mesh);
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
  BoundaryPtr boundary;
  if (kind == BoundaryKind::kLinear &&
      target.module.as<torch::nn::Linear>() != nullptr) {
    linears_.push_back(target);
  }
  bool is_tied = false;
  for (const auto& parameter : parameters) {
    auto& all = *change_of(parameter).boundaries;
    if (const auto& old = all.get(kind)) {
      check_may_share(*old, target, layouts);
      is_tied = true; // the other's boundary prepares the input
      continue;
    }
    if (boundary == nullptr) {
      boundary = std::make_shared<Boundary>(
          target.name,
          &target.module,
          describe_style(parameters[0], target, layouts),
          layouts,
          Converter(
              style_mesh(target),
              layouts.input,
              is_tied ? nullptr : siblings_of(target, layouts.input)));
      styles_.push_back({&target.module, kind, boundary});
    }
    all.set(kind, boundary);
  }
}

void PlanChanges::hook(
    const StyleTarget& target,
    ModuleHooks& hooks,
    const std::string& style,
    const std::string& layouts,
    ModuleHooks::Hook before,
    ModuleHooks::Hook after) {
  const bool is_new = hooked_.insert({&hooks, style}).second;
  DTENSOR_CHECK(
      is_new && !hooks.has_style(style),
      "[parallelize_module] {} has the style {} already. Style a module once.",
      describe_module(target),
      style);
  hooks_.push_back(
      {&hooks,
       style,
       layouts,
       target.name,
       std::move(before),
       std::move(after)});
}

std::shared_ptr<Siblings> PlanChanges::siblings_of(
    const StyleTarget& target,
    const InputLayouts& layouts) {
  if (target.name.empty()) {
    return nullptr;
  }
  const auto dot = target.name.rfind('.');
  const auto parent =
      dot == std::string::npos ? "" : target.name.substr(0, dot);
  auto& families = families_[parent];
  auto family = std::ranges::find_if(
      families, [&](const auto& f) { return f.layouts == layouts; });
  if (family == families.end()) {
    families.push_back({layouts, std::make_shared<Siblings>()});
    family = std::prev(families.end());
  }
  return family->siblings;
}

std::string PlanChanges::describe_style(
    const at::Tensor& weight,
    const StyleTarget& target,
    const BoundaryLayouts& layouts) {
  const auto spec = change_of(weight).layout();
  const auto text = [](const Placement& p) { return to_string(p); };
  return detail::format_text(
      "{} ({}weight {}, input {}{})",
      describe_module(target),
      target.style.empty() ? "" : target.style + ": ",
      spec == nullptr ? "plain"
                      : text(spec->placements()[static_cast<size_t>(
                            style_mesh(target).dim)]),
      text(layouts.input.desired),
      layouts.output ? ", output " + text(*layouts.output) : "");
}

// Adds the boundary to biases, in case a style has attached it to the weight
// only.
void PlanChanges::complete_biases() {
  for (const auto& target : linears_) {
    const auto& linear = *target.module.as<torch::nn::Linear>();
    const auto weight = change_of(linear.weight);
    const auto boundary = weight.boundaries->get(BoundaryKind::kLinear);
    if (!linear.bias.defined() || boundary == nullptr) {
      continue; // no bias, or a boundary of other parameters
    }
    const auto spec = weight.layout();
    if (spec != nullptr && change_of(linear.bias).layout() == nullptr) {
      const auto& rows =
          spec->placements()[static_cast<size_t>(style_mesh(target).dim)];
      distribute(
          linear.bias,
          target,
          rows.is_sharded(0) ? rows : Placement(Replicate()),
          "bias");
    }
    auto& on_bias = *change_of(linear.bias).boundaries;
    if (on_bias.get(BoundaryKind::kLinear) == nullptr) {
      on_bias.set(BoundaryKind::kLinear, boundary);
    }
    boundary->expect_bias(linear.bias);
  }
}

// Checks that each parameter with a boundary is a DTensor or becomes a DTensor.
void PlanChanges::check_boundaries() const {
  for (const auto& change : parameters_) {
    const auto& boundary = change.boundaries->get_any(BoundaryKind::kLinear);
    const auto& t = change.tensor;
    DTENSOR_CHECK(
        boundary == nullptr || change.layout() != nullptr,
        "[attach_boundary] a parameter of {} is plain: {}. Call "
        "set_parameter_placement() for the parameter first.",
        describe_module(boundary->module_name()),
        t.defined() ? shape_text(t.scalar_type(), t.sizes()) : "undefined");
  }
}

void PlanChanges::carry_out() {
  check_boundaries();
  complete_biases();
  for (auto& [parameter, spec, src_data_rank, boundaries] : parameters_) {
    if (spec != nullptr) {
      distribute_parameter(
          parameter, spec->mesh(), spec->placements(), src_data_rank);
    }
    // A parameter that a style only distributes has no boundaries.
    if (boundaries->get_any(BoundaryKind::kLinear) != nullptr) {
      meta_of(parameter).boundaries = std::move(boundaries);
    }
  }
  for (auto& [module, kind, boundary] : styles_) {
    note_styled(*module, kind, std::move(boundary));
  }
  for (auto& [hooks, style, layouts, module_name, before, after] : hooks_) {
    hooks->record_style(style, module_name, layouts);
    if (before) {
      hooks->add_forward_pre_hook(std::move(before));
    }
    if (after) {
      hooks->add_forward_hook(std::move(after));
    }
  }
}

} // namespace dtensor::detail
