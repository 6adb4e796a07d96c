// SPDX-License-Identifier: BSD-3-Clause
// PlanChanges: the pending changes of a plan. Styles record and check their
// changes; nothing changes before all styles have accepted their modules. Also
// helpers of styles: their mesh, names for messages, and the module's hooks.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/ops/boundary/converter_impl.h>
#include <dtensor/parallel/module_hooks.h>
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

/// Returns the mesh of the module's tensors: the target's root mesh, or the
/// target's mesh if there is no root mesh.
StyleMesh style_mesh(const StyleTarget& target);

/// Returns the module's name for messages.
std::string describe_module(const StyleTarget& target);
/// Like describe_module(), with the type: "module \"w1\" of type
/// torch::nn::LinearImpl".
std::string describe_typed(const StyleTarget& target);

/// Returns the module's hooks. Throws NotImplementedError, with the line to
/// change, if the module is not declared with DTENSOR_MODULE. `style` begins
/// the message.
DTENSOR_INTERNAL_API ModuleHooks& hooks_of(
    const StyleTarget& target,
    const char* style);

class PlanChanges {
 public:
  /// Turns `parameter` itself (the TensorImpl that module, optimizer and tied
  /// modules share) into a DTensor in layout `placement`, with values from rank
  /// src_data_rank. Its gradient gets the same layout. A tied parameter that
  /// has the layout already is unchanged. Throws RuntimeError if the parameter
  /// has another layout. `what` is the parameter's name in messages.
  void distribute(
      const at::Tensor& parameter,
      const StyleTarget& target,
      const Placement& placement,
      const std::string& what);

  /// Attaches a boundary to the module's parameters, which are DTensors, now or
  /// by this plan. The bias of a torch::nn::Linear gets the boundary too. If no
  /// style gives the bias a layout, it gets a layout that matches the weight's
  /// layout. Throws RuntimeError if the module already has a boundary or is
  /// tied to a module with a different boundary.
  void attach(
      at::TensorList parameters,
      BoundaryKind kind,
      const StyleTarget& target,
      BoundaryLayouts layouts);

  /// Adds hooks, each of which may be null. `layouts` appears in messages.
  /// Throws RuntimeError if `style` has already added hooks to the module.
  void hook(
      const StyleTarget& target,
      ModuleHooks& hooks,
      const std::string& style,
      const std::string& layouts,
      ModuleHooks::Hook before,
      ModuleHooks::Hook after);

  /// Returns the inputs that share a redistribution: inputs of children of one
  /// module with equal layouts. Returns null for the root module of a plan,
  /// which has no siblings.
  std::shared_ptr<Siblings> siblings_of(
      const StyleTarget& target,
      const InputLayouts& layouts);

  /// Carries out all changes. Communicates to distribute parameters. Throws
  /// RuntimeError, and changes nothing, if a parameter with a boundary is plain
  /// and no style distributes it.
  void carry_out();

 private:
  struct Parameter {
    at::Tensor tensor;
    SpecPtr spec; // new layout; null: unchanged
    std::optional<int64_t> src_data_rank;
    std::shared_ptr<Boundaries> boundaries;

    /// Returns the layout, now or by this plan; null for a plain tensor.
    SpecPtr layout() const;
  };
  struct Style {
    torch::nn::Module* module;
    BoundaryKind kind;
    BoundaryPtr boundary;
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
    std::shared_ptr<Siblings> siblings;
  };

  Parameter& change_of(const at::Tensor& parameter);
  std::string describe_style(
      const at::Tensor& weight,
      const StyleTarget& target,
      const BoundaryLayouts& layouts);
  void complete_biases();
  void check_boundaries() const;

  std::vector<Parameter> parameters_;
  std::unordered_map<const void*, size_t> places_; // of parameters
  std::vector<Style> styles_;
  std::vector<StyleTarget> linears_; // their weights have a boundary
  std::vector<Hooks> hooks_;
  std::set<std::pair<const ModuleHooks*, std::string>> hooked_;
  std::unordered_map<std::string, std::vector<Family>> families_; // by parent
};

/// Calls `note(changes)` with the changes of the target's plan. For a style
/// that is applied on its own, carries the changes out at once.
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
