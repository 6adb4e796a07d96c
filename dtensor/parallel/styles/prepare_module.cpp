// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/prepare_module.h>

#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/nn/module.h>

namespace dtensor {
namespace {

void check_lengths(
    const char* style,
    const char* what,
    const OptionalPlacements& now,
    const OptionalPlacements& desired) {
  DTENSOR_CHECK_VALUE(
      now.size() == desired.size(),
      "[{}] got {} {}_layouts and {} desired_{}_layouts. Pass one of each per "
      "tensor, nullopt to leave a tensor unchanged.",
      style,
      now.size(),
      what,
      desired.size(),
      what);
  for (size_t i = 0; i < now.size(); ++i) {
    DTENSOR_CHECK_VALUE(
        now[i].has_value() == desired[i].has_value(),
        "[{}] {} {} has only one of its two layouts. Pass both, or nullopt for "
        "both.",
        style,
        what,
        i);
  }
}

// The conversion of a module's inputs or outputs. `tensors` has a converter for
// each tensor; nullopt leaves a tensor unchanged.
struct Change {
  const char* style;
  std::string module;
  std::vector<std::optional<detail::Converter>> tensors;
  bool use_local;

  // Returns "inputs S(1) -> R, -" for messages.
  std::string text(const std::string& what) const {
    std::string all;
    for (const auto& tensor : tensors) {
      all += all.empty() ? what + " " : ", ";
      all += tensor ? to_string(tensor->layouts().plain) + " -> " +
              to_string(tensor->layouts().desired)
                    : "-";
    }
    return all;
  }
};

constexpr auto kInput = detail::ReplicaKind::kInput;
constexpr auto kOutput = detail::ReplicaKind::kOutput;

// Returns the local tensor. Styles take plain tensors as replicated on all mesh
// dimensions but their own, so no other dimension may distribute the tensor.
at::Tensor to_local(
    const Change& change,
    const detail::StyleMesh& where,
    const at::Tensor& distributed) {
  const auto& spec = *detail::spec_of(distributed);
  DTENSOR_CHECK_VALUE(
      where.alone(spec.placements()[static_cast<size_t>(where.dim)]) ==
          Placements(spec.placements()),
      "[{}] a tensor of {} is {}, and its local tensor would lose the layout "
      "on other mesh dimensions than that of the style. Keep a DTensor: pass "
      "use_local_output = false (use_local_input for inputs of "
      "PrepareModuleInputOutput).",
      change.style,
      change.module,
      spec);
  detail::record_local_tensor(spec);
  return detail::to_local_autograd(distributed);
}

void change_layouts(
    const Change& change,
    detail::ReplicaKind kind,
    const std::vector<at::Tensor*>& tensors) {
  DTENSOR_CHECK_VALUE(
      tensors.size() == change.tensors.size(),
      "[{}] {} has {}, but got layouts for {}. Pass one layout per tensor, "
      "nullopt to leave a tensor unchanged.",
      change.style,
      change.module,
      detail::pluralize(
          tensors.size(), kind == kInput ? "tensor input" : "tensor output"),
      change.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& converter = change.tensors[i];
    if (converter && tensors[i]->defined()) {
      if (C10_UNLIKELY(detail::replicas_observed())) {
        converter->notify(kind, *tensors[i]);
      }
      const auto placed = converter->convert(*tensors[i]);
      *tensors[i] = change.use_local
          ? to_local(change, converter->where(), placed)
          : placed;
    }
  }
}

// Adds a hook that brings the module's inputs or outputs from `now` to
// `desired`.
void apply_change(
    const StyleTarget& target,
    const char* style,
    detail::ReplicaKind kind,
    const OptionalPlacements& now,
    const OptionalPlacements& desired,
    bool use_local) {
  auto& hooks = detail::hooks_of(target, style);
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    Change change{style, detail::describe_module(target), {}, use_local};
    for (size_t i = 0; i < now.size(); ++i) {
      auto& converter = change.tensors.emplace_back();
      if (now[i]) {
        const detail::InputLayouts layouts{
            .plain = *now[i], .desired = *desired[i]};
        converter.emplace(
            detail::style_mesh(target),
            layouts,
            kind == kInput ? changes.siblings_of(target, layouts) : nullptr);
      }
    }
    const auto text = change.text(kind == kInput ? "inputs" : "outputs");
    const ModuleHooks::Hook hook = [change = std::move(change),
                                    kind](const auto& tensors) {
      change_layouts(change, kind, tensors);
    };
    changes.hook(
        target,
        hooks,
        style,
        text,
        kind == kInput ? hook : nullptr,
        kind == kInput ? nullptr : hook);
  });
}

} // namespace

PrepareModuleInput::PrepareModuleInput(PrepareModuleInputOptions options)
    : options_(std::move(options)) {
  check_lengths(
      "PrepareModuleInput",
      "input",
      options_.input_layouts,
      options_.desired_input_layouts);
}

void PrepareModuleInput::apply(const StyleTarget& target) const {
  apply_change(
      target,
      "PrepareModuleInput",
      kInput,
      options_.input_layouts,
      options_.desired_input_layouts,
      options_.use_local_output);
}

PrepareModuleOutput::PrepareModuleOutput(PrepareModuleOutputOptions options)
    : options_(std::move(options)) {
  check_lengths(
      "PrepareModuleOutput",
      "output",
      options_.output_layouts,
      options_.desired_output_layouts);
}

void PrepareModuleOutput::apply(const StyleTarget& target) const {
  apply_change(
      target,
      "PrepareModuleOutput",
      kOutput,
      options_.output_layouts,
      options_.desired_output_layouts,
      options_.use_local_output);
}

PrepareModuleInputOutput::PrepareModuleInputOutput(
    PrepareModuleInputOutputOptions options)
    : input_(
          {std::move(options.input_layouts),
           std::move(options.desired_input_layouts),
           options.use_local_input}),
      output_(
          {std::move(options.output_layouts),
           std::move(options.desired_output_layouts),
           options.use_local_output}) {}

void PrepareModuleInputOutput::apply(const StyleTarget& target) const {
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    StyleTarget both = target;
    both.changes = &changes;
    input_.apply(both);
    output_.apply(both);
  });
}

} // namespace dtensor
