// SPDX-License-Identifier: BSD-3-Clause
// parallelize_module(): applies a plan, which pairs name patterns with styles.
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

/// Name pattern, and the style of the modules that match.
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
  /// Converts an entry of a map.
  template <class Style>
  explicit ParallelizePlanEntry(
      const std::pair<const std::string, std::shared_ptr<Style>>& entry)
      : ParallelizePlanEntry(entry.first, entry.second) {}
};
/// Entries in the order in which their styles are applied.
using ParallelizePlan = std::vector<ParallelizePlanEntry>;

/// Options for parallelize_module().
struct ParallelizeOptions {
  /// Rank, within the mesh dimension, whose parameter values are scattered to
  /// all ranks. nullopt: every rank shards its own values, without
  /// communication.
  std::optional<int64_t> src_data_rank = 0;
  /// Keeps outputs of Linear, Embedding and norm modules, and of modules with
  /// the style SequenceParallel, as DTensors, even if their style has
  /// use_local_output. For models that compute on global shapes.
  bool keep_dtensors = false;
  /// The full mesh. `mesh` must be one of its named dimensions. Parameters and
  /// activations are DTensors on all of it. Styles shard along `mesh` only. On
  /// other dimensions parameters are replicated and inputs keep their layout,
  /// for example sharded along the batch or the sequence. Requires
  /// keep_dtensors; disables overlap_chunks.
  DeviceMesh root_mesh = {};
};

/// Applies the styles of `plan` to the submodules whose names match. Patterns
/// are split at dots; each component matches the children's names at that level
/// with *, ?, [seq] and [!seq]. "" is the root module. An undefined mesh
/// means the current mesh (comm/mesh_scope.h).
/// Throws ValueError for a mesh that is not 1-D, and for a root_mesh without
/// `mesh` as a dimension. A pattern that matches nothing is a ValueError
/// that lists the names at that level. Throws NotImplementedError for a style
/// that does not support its module, and RuntimeError for a module that would
/// be styled twice.
/// Python: torch.distributed.tensor.parallel.parallelize_module.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options = {});

/// Applies one style to the module itself.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    const ParallelizeOptions& options = {});

/// Overloads for the current mesh.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options = {});
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const ParallelStyle& style,
    const ParallelizeOptions& options = {});

/// Overload without a plan: warns, and leaves the module unchanged.
DTENSOR_API void parallelize_module(
    const torch::nn::Module& module,
    const DeviceMesh& mesh = {});

/// Applies a plan given as a map of patterns to shared pointers to styles.
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
