// SPDX-License-Identifier: BSD-3-Clause
// fully_shard: data parallelism in which every rank keeps a part of each
// parameter, of its gradient and of what the optimizer knows of it.
//
//   for (auto& block : *model->blocks) {
//     fully_shard(*block, {.mesh = mesh["dp"]});
//   }
//   fully_shard(*model, {.mesh = mesh["dp"]});      // the rest: one unit more
//   torch::optim::AdamW optimizer(model->parameters());
//   loss_of(model(my_batch)).backward();            // each rank its own batch
//   optimizer.step();
//
// A unit's parameters become DTensors, cut over the ranks. Operators of its
// modules get the whole of a parameter instead: the first one gathers those of
// the unit by one collective, and the memory goes when another unit begins.
// The backward pass gathers them once more, and sums all gradients of the unit
// by one reduce_scatter. Modules need no hooks for that and no other classes.
//
// Python: torch.distributed.fsdp.fully_shard (FSDP2).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class Unit;
}

/// What a unit keeps of its whole parameters between forward and backward.
class ReshardAfterForward {
 public:
  /// true: nothing; false: everything, which saves the second gather.
  template <std::same_as<bool> Bool>
  constexpr ReshardAfterForward(Bool reshards) : ranks_(reshards ? 0 : -1) {}
  /// A part for so many neighbouring ranks, among which backward gathers. They
  /// divide the ranks that parameters are cut over.
  template <std::integral Int>
  requires(!std::same_as<Int, bool>) constexpr ReshardAfterForward(Int ranks)
      : ranks_(ranks) {}

  bool reshards() const {
    return ranks_ >= 0;
  }
  /// 0: nothing is kept.
  int64_t ranks() const {
    return ranks_;
  }

 private:
  int64_t ranks_;
};

/// Dtypes of a unit other than that of its parameters.
/// Python: torch.distributed.fsdp.MixedPrecisionPolicy.
struct MixedPrecisionPolicy {
  /// In which parameters are gathered, and computed with.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// In which gradients are summed, over ranks and over backward passes that
  /// wait for that; default: that in which they were computed.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Of the module's floating-point results. The module has to be declared
  /// with DTENSOR_MODULE (parallel/module_hooks.h).
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Floating-point operands beside a parameter are cast to param_dtype, and
  /// so are the arguments of a module that is declared with DTENSOR_MODULE.
  bool cast_forward_inputs = true;
};

/// Parameters, gradients and optimizer states stay in the memory of the CPU,
/// and the whole of a parameter is on the device of the mesh. On a mesh of the
/// CPU nothing changes. Python: torch.distributed.fsdp.CPUOffloadPolicy.
struct CPUOffloadPolicy {
  /// In page-locked memory, which a GPU reads faster.
  bool pin_memory = true;
};

/// Options of fully_shard.
struct FullyShardOptions {
  /// 1-D: parameters are cut over its ranks. 2-D: cut over those of its second
  /// dimension, and repeated along the first one (HSDP). Default: the current
  /// mesh (comm/mesh_scope.h).
  DeviceMesh mesh = {};
  /// Default: true for a unit inside of another one, false for the outermost.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// The cut of a parameter, Shard(d); nothing: Shard(0).
  std::function<std::optional<Placement>(const at::Tensor&)>
      shard_placement_fn = nullptr;
  /// They stay as they are.
  std::vector<at::Tensor> ignored_params = {};
};

/// A unit that fully_shard made, and those inside of it. A handle.
/// Python: torch.distributed.fsdp.FSDPModule, which the module itself becomes.
class DTENSOR_API FSDPModule {
 public:
  /// The unit of a module. Throws ValueError if it is none.
  explicit FSDPModule(const torch::nn::Module& module);
  explicit FSDPModule(std::shared_ptr<detail::Unit> unit);

  /// Gathers the parameters ahead of their use; `async_op`: as far as the
  /// backend overlaps, while this rank goes on.
  void unshard(bool async_op = false);
  /// Frees what was gathered.
  void reshard();

  /// The next backward passes sum nothing over ranks: gradients are kept whole
  /// until one that does. For accumulation over several of them.
  void set_requires_gradient_sync(bool requires_sync, bool recurse = true);
  /// HSDP: the same along the dimension that repeats.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true);
  /// Python: the same names.
  void set_reshard_after_forward(bool reshards, bool recurse = true);
  void set_reshard_after_backward(bool reshards, bool recurse = true);
  /// Gradients are sums over ranks, divided by this; default: their average.
  void set_gradient_divide_factor(double factor);
  /// The units to gather ahead when this one begins its forward (backward)
  /// pass, instead of the one that came next in the last step.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& units);
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& units);

 private:
  std::vector<std::shared_ptr<detail::Unit>> units(bool recurse) const;

  std::shared_ptr<detail::Unit> unit_;
};

/// Makes the parameters of `module` that no unit has yet one unit. Call it for
/// the inner modules first. Plain parameters have to have the same values on
/// all ranks. A parameter that parallelize_module made a DTensor becomes one on
/// both meshes, which are slices of one: (S(0), R) of R, (StridedShard(0),
/// S(0)) of S(0); of a cut in units that no StridedShard can follow (S(0, u),
/// S(0, u)), with data parallelism last. Gradients that exist are cut along.
///
/// Operators on parameters alone (`1 + weight`) compute on the parts, and give
/// DTensors; where such a result meets another tensor, operators get its whole.
/// The forward of a module that is declared with DTENSOR_MODULE sees whole
/// parameters. Second derivatives through a unit throw NotImplementedError.
/// Throws ValueError: a mesh of more dimensions, or that the parameter is on
/// already; a module that is a unit already; a placement that is no Shard(d);
/// parameters of different dtypes without mp_policy.param_dtype.
/// NotImplementedError: an output_dtype for a module without hooks.
/// Python: torch.distributed.fsdp.fully_shard.
DTENSOR_API FSDPModule
fully_shard(torch::nn::Module& module, const FullyShardOptions& options = {});

} // namespace dtensor
