// SPDX-License-Identifier: BSD-3-Clause
// parallelize_module(): a plan pairs name patterns with styles.
//
//   parallelize_module(*model, mesh["tp"], {
//       {"blocks.*.mlp.w1", ColwiseParallel()},
//       {"blocks.*.mlp.w2", RowwiseParallel({.output_layouts = Shard(1)})},
//   });
//
// Python: torch.distributed.tensor.parallel.parallelize_module.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

class ParallelStyle; // parallel/style.h, which includes this header

/// A pattern and the style of the modules that it matches.
struct ParallelizePlanEntry {
  std::string pattern;
  std::shared_ptr<const ParallelStyle> style;

  template <std::derived_from<ParallelStyle> Style>
  ParallelizePlanEntry(std::string name_pattern, Style value)
      : pattern(std::move(name_pattern)),
        style(std::make_shared<const Style>(std::move(value))) {}
  ParallelizePlanEntry(
      std::string name_pattern,
      std::shared_ptr<const ParallelStyle> shared)
      : pattern(std::move(name_pattern)),
        style(std::move(shared)) {}
  /// Of a map.
  template <class Style>
  explicit ParallelizePlanEntry(
      const std::pair<const std::string, std::shared_ptr<Style>>& entry)
      : ParallelizePlanEntry(entry.first, entry.second) {}
};
/// In the order in which styles are applied.
using ParallelizePlan = std::vector<ParallelizePlanEntry>;

/// Options of parallelize_module.
struct ParallelizeOptions {
  /// Rank of the mesh dimension whose parameter values are scattered; nullopt:
  /// no communication, every rank cuts its own values.
  std::optional<int64_t> src_data_rank = 0;
  /// Outputs of Linear, Embedding and norm modules stay DTensors, whatever
  /// use_local_output of their style says: for models that compute on global
  /// shapes.
  bool keep_dtensors = false;
  /// A mesh of which the one that the plan is for is a dimension, of that name:
  /// parameters and values are DTensors on all of it. Styles cut along that
  /// dimension alone; on the others parameters are replicated, and inputs stay
  /// as they come, cut along the batch or the sequence for example. Wants
  /// keep_dtensors; overlap_chunks does nothing then.
  DeviceMesh root_mesh = {};
};

/// Applies the styles of `plan` to the submodules whose names match: patterns
/// are split at dots, each part is matched against the children's names at
/// that level with *, ?, [seq] and [!seq]; "" is the module itself.
/// Throws ValueError: a mesh that is not one-dimensional, a pattern that
/// matches nothing (naming what exists at that level); NotImplementedError: a
/// style on a module that it cannot do; RuntimeError: a module styled twice.
/// ValueError for a root_mesh that `mesh` is no dimension of.
/// An undefined mesh is the current one (comm/mesh_scope.h).
/// Python: torch.distributed.tensor.parallel.parallelize_module.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options = {});

/// The same with one style for the module itself.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    const ParallelizeOptions& options = {});

/// Both on the current mesh.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options = {});
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const ParallelStyle& style,
    const ParallelizeOptions& options = {});

/// Without a plan: warns, and the module stays as it is.
DTENSOR_API void parallelize_module(
    const torch::nn::Module& module,
    const DeviceMesh& mesh = {});

/// A plan that is a map of patterns to shared pointers to styles.
template <class Map>
requires requires {
  typename Map::mapped_type;
}
void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const Map& plan,
    const ParallelizeOptions& options = {}) {
  parallelize_module(
      module, mesh, ParallelizePlan(plan.begin(), plan.end()), options);
}

} // namespace dtensor
