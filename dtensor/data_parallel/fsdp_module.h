// SPDX-License-Identifier: BSD-3-Clause
// FSDPModule: controls a unit of fully_shard() from step to step.
//
//   auto unit = fully_shard(*model, {.mesh = mesh["dp"]});
//   unit.set_requires_gradient_sync(false);   // accumulates gradients locally
//
// Python: torch.distributed.fsdp.FSDPModule (there, the module itself).
#pragma once

#include <dtensor/api.h>

#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class Unit;
}

/// Handle to the reductions that FSDPModule::finalize_backward() left in
/// flight. Python: torch.distributed.fsdp.GradientReductionHandle (since 2.15).
class DTENSOR_API GradientReductionHandle {
 public:
  /// Waits for the reductions, and frees the parameters that still are
  /// unsharded. Does nothing if called again.
  void wait();

 private:
  friend class FSDPModule;
  explicit GradientReductionHandle(std::shared_ptr<detail::Unit> unit);
  std::shared_ptr<detail::Unit> unit_; // null: nothing to wait for
};

/// Handle to a unit made by fully_shard, including its nested units.
class DTENSOR_API FSDPModule {
 public:
  /// Makes a handle to the unit of `module`. Throws ValueError if there is
  /// none.
  explicit FSDPModule(const torch::nn::Module& module);
  explicit FSDPModule(std::shared_ptr<detail::Unit> unit);

  /// Gathers the parameters before their use. With `async_op`, returns while
  /// the all-gather is in flight if the backend supports this.
  void unshard(bool async_op = false);
  /// Frees the unsharded parameters.
  void reshard();

  /// With false, the next backward passes accumulate unreduced gradients
  /// locally. The first pass after a call with true reduces their sum, also for
  /// parameters that were frozen in between. For gradient accumulation.
  void set_requires_gradient_sync(bool requires_sync, bool recurse = true);
  /// Like set_requires_gradient_sync, for the all-reduce of HSDP only.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true);
  /// Replaces FullyShardOptions::reshard_after_forward.
  void set_reshard_after_forward(bool reshards, bool recurse = true);
  /// With false, the backward pass leaves the unsharded parameters in memory.
  void set_reshard_after_backward(bool reshards, bool recurse = true);
  /// With true, reshard() keeps the memory of the unsharded parameters, and
  /// unshard() fills that memory again. Their addresses then stay the same, as
  /// CUDA graphs require, unless an autograd graph still needs the earlier
  /// values. Python: since 2.15.
  void set_keep_unsharded_storage(bool keep, bool recurse = true);
  /// Sums gradients over ranks and divides the sum by `factor`. The default
  /// factor is the number of ranks. Throws ValueError unless `factor` is
  /// positive.
  void set_gradient_divide_factor(double factor);
  /// Sets the units whose parameters are gathered ahead when this unit begins
  /// its forward (backward) pass. Default: the unit that came next in the
  /// previous step.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& units);
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& units);

  /// With true, the program must call finalize_backward() after the backward
  /// passes of a step, before it reads gradients. Call this function on the
  /// outermost unit, before the backward pass. Throws RuntimeError on a nested
  /// unit, and between a backward pass and finalize_backward(). Python: since
  /// 2.15.
  void set_manual_backward_finalization(bool enabled);
  /// Ends the backward passes of a step: waits for reductions, and frees the
  /// parameters that still are unsharded. Also reduces gradients that
  /// accumulated without sync (or all-reduce) if it is required now. With
  /// `async_op`, does not wait for the reductions: call wait() of the result
  /// before the next step. All ranks must call this function. Throws
  /// RuntimeError on a nested unit, without
  /// set_manual_backward_finalization(true), and while an earlier result was
  /// not waited for. Python: since 2.15.
  GradientReductionHandle finalize_backward(bool async_op = false);

 private:
  std::vector<std::shared_ptr<detail::Unit>> units(bool recurse) const;

  std::shared_ptr<detail::Unit> unit_;
};

} // namespace dtensor
