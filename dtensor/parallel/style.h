// SPDX-License-Identifier: BSD-3-Clause
// ParallelStyle: which layout the parameters, inputs and outputs of a module
// get. Styles are values; one may stand in many places of a plan, as
// parallelize_module() takes it.
// Python: torch.distributed.tensor.parallel.ParallelStyle.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/parallel/parallelize_module.h>

#include <optional>
#include <string>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class PlanChanges;
}

/// What a style is told of the module it is applied to.
struct StyleTarget {
  /// What the style is to change.
  torch::nn::Module& module;
  std::string name; // full name, as "blocks.0.attn.wq"
  DeviceMesh mesh;  // one-dimensional
  /// Whose parameter values count; nullopt: every rank cuts its own.
  std::optional<int64_t> src_data_rank = 0;
  /// Where the styles of this library note what they will do, which is done
  /// once no style of the plan refuses its module; null: they do it at once.
  detail::PlanChanges* changes = nullptr;
  /// See ParallelizeOptions.
  bool keep_dtensors = false;
  DeviceMesh root_mesh = {};
  /// Name of the style in the plan, for messages.
  std::string style = {};

  /// The same of `child`, a module registered in this one as `child_name`.
  DTENSOR_API StyleTarget
  of_child(const std::string& child_name, torch::nn::Module& child) const;
};

/// How one kind of module becomes parallel; docs/guides/write_a_style.md writes
/// one. Python: torch.distributed.tensor.parallel.ParallelStyle.
class DTENSOR_API ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;
  /// Gives the module's parameters their layouts and installs the boundary.
  /// Throws NotImplementedError for a module that the style cannot do.
  virtual void apply(const StyleTarget& target) const = 0;
};

} // namespace dtensor
