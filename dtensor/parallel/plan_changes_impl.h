// SPDX-License-Identifier: BSD-3-Clause
// PlanChanges: what the styles of a plan are about to do. They note it and
// refuse what cannot be, and nothing is done before all have agreed.
#pragma once

#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/boundary_impl.h>
#include <dtensor/parallel/hook_list.h>
#include <dtensor/parallel/layout_boundary_impl.h>
#include <dtensor/parallel/shared_input_impl.h>
#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dtensor::detail {

class PlanChanges {
 public:
  /// `parameter` itself (the TensorImpl that module, optimizer and ties see) is
  /// to become a DTensor in layout `placement`, from rank src_data_rank's
  /// values, and its gradient to land in that layout. A tied parameter that has
  /// the layout already stays as it is; throws RuntimeError if it has another.
  /// `what` names it for messages.
  void distribute(
      const at::Tensor& parameter,
      const StyleTarget& target,
      const Placement& placement,
      const std::string& what);

  /// A boundary is to ride on the module's parameters, which are, or are to be,
  /// DTensors. The bias of a torch::nn::Linear gets the boundary, too, and the
  /// layout that goes with the weight if no style gives it one. Throws
  /// RuntimeError if the module has one already, or one that it is tied to
  /// differs.
  void attach(
      at::TensorList parameters,
      BoundaryKind kind,
      const StyleTarget& target,
      BoundaryLayouts layouts);

  /// Hooks, each of which may be null. Messages say `layouts`. Throws
  /// RuntimeError if `style` hooked the module before.
  void hook(
      const StyleTarget& target,
      ModuleHooks& hooks,
      const std::string& style,
      const std::string& layouts,
      ModuleHooks::Hook before,
      ModuleHooks::Hook after);

  /// The place of one more input among those that share. Siblings are children
  /// of one module; a module that is the root of its plan has none.
  Sibling join(const StyleTarget& target, const InputLayouts& layouts);

  /// Communicates where parameters are distributed.
  void carry_out();

 private:
  struct Parameter {
    at::Tensor tensor;
    SpecPtr spec; // to be; null: it is a DTensor already
    std::optional<int64_t> src_data_rank;
    std::shared_ptr<Boundaries> boundaries;
  };
  struct Style {
    torch::nn::Module* module;
    BoundaryKind kind;
    std::shared_ptr<const LayoutBoundary> boundary;
  };
  struct Hooks {
    ModuleHooks* hooks;
    std::string style;
    std::string layouts;
    std::string module_name;
    ModuleHooks::Hook before;
    ModuleHooks::Hook after;
  };
  struct Family {
    InputLayouts layouts;
    std::shared_ptr<SiblingGroup> group;
  };

  Parameter& change_of(const at::Tensor& parameter);
  std::string describe_style(
      const at::Tensor& weight,
      const StyleTarget& target,
      const BoundaryLayouts& layouts);
  void complete_biases();

  std::vector<Parameter> parameters_;
  std::unordered_map<const void*, size_t> places_; // of parameters
  std::vector<Style> styles_;
  std::vector<StyleTarget> linears_; // whose weights have a boundary
  std::vector<Hooks> hooks_;
  std::set<std::pair<const ModuleHooks*, std::string>> hooked_;
  std::unordered_map<std::string, std::vector<Family>> families_; // of a parent
};

/// Calls `note(changes)` with the changes of the target's plan. A style that is
/// applied by itself changes its module at once.
template <class Note>
void note_changes(const StyleTarget& target, const Note& note) {
  if (target.changes != nullptr) {
    note(*target.changes);
    return;
  }
  PlanChanges alone;
  note(alone);
  alone.carry_out();
}

} // namespace dtensor::detail
