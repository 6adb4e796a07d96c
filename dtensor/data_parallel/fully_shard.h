// SPDX-License-Identifier: BSD-3-Clause
// fully_shard: sharded data parallelism. Every rank keeps only a shard of each
// parameter, of its gradient and of its optimizer state.
//
//   for (auto& block : *model->blocks) {
//     fully_shard(*block, {.mesh = mesh["dp"]});
//   }
//   fully_shard(*model, {.mesh = mesh["dp"]});      // remaining parameters
//   torch::optim::AdamW optimizer(model->parameters());
//   loss_of(model(my_batch)).backward();            // one batch per rank
//   optimizer.step();
//
// Each call of fully_shard makes a unit. The parameters of a unit become
// DTensors that are sharded over the ranks. Operators in the unit's modules get
// unsharded parameters: the first operator gathers all parameters of the unit
// by one all-gather. The unsharded parameters are freed when another unit
// begins. The backward pass gathers them again, and reduces all gradients of
// the unit by one reduce-scatter. Modules need neither hooks nor another class
// for this.
//
// Python: torch.distributed.fsdp.fully_shard (FSDP2).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <dtensor/api.h>
#include <dtensor/data_parallel/fsdp_module.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Option for the unsharded parameters that a unit keeps between forward and
/// backward pass.
class ReshardAfterForward {
 public:
  /// true: keeps none. false: keeps all, which saves the second all-gather.
  template <std::same_as<bool> Bool>
  constexpr ReshardAfterForward(Bool reshards) : ranks_(reshards ? 0 : -1) {}
  /// Keeps the parameters sharded over `ranks` neighbouring ranks; the backward
  /// pass gathers them within these ranks. `ranks` must divide the number of
  /// ranks that parameters are sharded over.
  template <std::integral Int>
  requires(!std::same_as<Int, bool>) constexpr ReshardAfterForward(Int ranks)
      : ranks_(ranks) {}

  /// Returns false if a unit keeps its unsharded parameters.
  bool reshards() const {
    return ranks_ >= 0;
  }
  /// Number of neighbouring ranks to reshard over. 0: all ranks; -1: does not
  /// reshard.
  int64_t ranks() const {
    return ranks_;
  }

 private:
  int64_t ranks_;
};

/// Dtypes of a unit that differ from the dtype of its parameters.
/// Python: torch.distributed.fsdp.MixedPrecisionPolicy.
struct MixedPrecisionPolicy {
  /// Dtype of unsharded parameters, for the all-gather and for computation.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Dtype in which gradients are reduced over ranks. Unreduced gradients of
  /// several backward passes are accumulated in it too. Default: the dtype of
  /// the gradients, promoted if they differ. (Python before 2.15; since then
  /// the dtype of the parameters.)
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Dtype of the module's floating-point outputs. The module must be declared
  /// with DTENSOR_MODULE (parallel/module_hooks.h).
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Casts the other floating-point operands of an operator on a parameter to
  /// param_dtype, and the arguments of a module that is declared with
  /// DTENSOR_MODULE.
  bool cast_forward_inputs = true;
  /// Chooses the dtype of single unsharded parameters: returns the parameter's
  /// own dtype to keep it, or nullopt for param_dtype. Called once for each
  /// parameter; must return the same on all ranks. Operators on a parameter
  /// that keeps its dtype do not cast their other operands.
  std::function<std::optional<at::ScalarType>(const at::Tensor&)>
      param_dtype_override_fn = nullptr;
};

/// Keeps sharded parameters, gradients and optimizer states in CPU memory.
/// Unsharded parameters are on the device of the mesh. On a CPU mesh this
/// changes nothing. Python: torch.distributed.fsdp.CPUOffloadPolicy.
struct CPUOffloadPolicy {
  /// Uses page-locked memory, from which copies to a GPU are faster.
  bool pin_memory = true;
};

/// Options for fully_shard().
struct FullyShardOptions {
  /// 1-D: parameters are sharded over the mesh. 2-D (HSDP): sharded over the
  /// second dimension, replicated over the first. Default: the current mesh
  /// (comm/mesh_scope.h).
  DeviceMesh mesh = {};
  /// Default: true for a nested unit, false for the outermost unit.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Returns the placement of a parameter, Shard(d). nullopt: Shard(0).
  std::function<std::optional<Placement>(const at::Tensor&)>
      shard_placement_fn = nullptr;
  /// Parameters to leave unchanged.
  std::vector<at::Tensor> ignored_params = {};
};

/// Makes one unit of those parameters of `module` that have no unit yet, so
/// call it for inner modules first. Plain parameters must have the same values
/// on all ranks. Existing gradients are sharded too.
///
/// A DTensor parameter (from parallelize_module) becomes a DTensor on both
/// meshes, which must be slices of one mesh. Data parallelism is the first mesh
/// dimension: R becomes (S(0), R), and S(0) becomes (StridedShard(0), S(0)). A
/// StridedShard cannot express every S(0, u=u). If it cannot, data parallelism
/// is the last mesh dimension: (S(0, u=u), S(0, u=u)).
///
/// Operators on parameters alone (`1 + weight`) compute on the local shards and
/// return DTensors. An operator that combines such a result with another tensor
/// gathers it. The forward pass of a module that is declared with
/// DTENSOR_MODULE gets unsharded parameters. Second derivatives through a unit
/// throw NotImplementedError.
/// Throws ValueError for a mesh of more than two dimensions, a mesh that a
/// parameter is already on, a module that is already a unit, and a placement
/// other than Shard(d). Throws ValueError also for parameters of different
/// dtypes without mp_policy.param_dtype, and for a dtype from
/// mp_policy.param_dtype_override_fn that is not the parameter's own.
/// Throws NotImplementedError for output_dtype of a module without hooks.
/// Python: torch.distributed.fsdp.fully_shard.
DTENSOR_API FSDPModule
fully_shard(torch::nn::Module& module, const FullyShardOptions& options = {});

} // namespace dtensor
