// SPDX-License-Identifier: BSD-3-Clause
// ParallelStyle: base of styles, which determine the layouts of a module's
// parameters, inputs and outputs. Styles are values: a plan for
// parallelize_module() may use one style in several entries.
// Python: torch.distributed.tensor.parallel.ParallelStyle.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/parallel/parallelize_module.h>

#include <functional>
#include <optional>
#include <string>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class PlanChanges;
}

/// Module that a style is applied to, with its context.
struct StyleTarget {
  /// Module to change.
  torch::nn::Module& module;
  std::string name; // full name, as "blocks.0.attn.wq"
  DeviceMesh mesh;  // 1-D
  /// Rank whose parameter values are used. nullopt: every rank shards its own.
  std::optional<int64_t> src_data_rank = 0;
  /// Records the changes of this library's styles until all styles of the plan
  /// have accepted their modules. Null: changes happen at once.
  detail::PlanChanges* changes = nullptr;
  /// See ParallelizeOptions.
  bool keep_dtensors = false;
  DeviceMesh root_mesh = {};
  /// Name of the style in the plan, for messages.
  std::string style = {};

  /// Returns the target for `child`, registered in this module as `child_name`.
  DTENSOR_API StyleTarget
  child_target(const std::string& child_name, torch::nn::Module& child) const;
  /// Returns the module's name and type, for messages: "module "up" of type
  /// torch::nn::LinearImpl".
  DTENSOR_API std::string describe() const;
};

/// Base of styles, which parallelize modules. See docs/guides/write_a_style.md.
/// Python: torch.distributed.tensor.parallel.ParallelStyle.
class DTENSOR_API ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;
  /// Distributes the module's parameters and attaches a boundary to them
  /// (parallel/boundary.h). Throws NotImplementedError for a module that the
  /// style does not support.
  virtual void apply(const StyleTarget& target) const = 0;
};

/// Applies several styles as one: calls `apply` with a target whose changes,
/// and those of its child targets, happen after `apply` has returned. If it
/// throws, nothing changes. For styles that apply other styles to a module and
/// its children.
DTENSOR_API void apply_together(
    const StyleTarget& target,
    const std::function<void(const StyleTarget&)>& apply);

} // namespace dtensor
