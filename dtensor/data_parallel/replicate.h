// SPDX-License-Identifier: BSD-3-Clause
// replicate: data parallelism in which every rank has the whole model, and
// gradients are averaged while the backward pass goes on.
//
//   replicate(*model, mesh["dp"]);
//   loss_of(model(my_batch)).backward();     // gradients are averages now
//
// average_gradients (parallel/gradients.h) does it afterwards; fully_shard
// keeps a part of the model on each rank.
// Python: torch.distributed._composable.replicate, DistributedDataParallel.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class Replication;
}

/// Options of replicate.
struct ReplicateOptions {
  /// Gradients of so many bytes go by one all-reduce.
  int64_t bucket_cap_bytes = 25 << 20;
  /// Dtype in which gradients are averaged, and in which those of several
  /// backward passes add up until then: `.grad` is undefined meanwhile. A
  /// wider dtype of the gradient itself is kept. Default: that of the
  /// gradient. Python: MixedPrecisionPolicy.reduce_dtype of replicate.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// All ranks take the module's buffers (the statistics of batch norms) from
  /// rank 0 of the mesh: now, at the end of every backward pass that averages
  /// gradients, and, if the module is declared with DTENSOR_MODULE, before a
  /// forward with gradients that follows another one without such a pass. A
  /// buffer that a graph has saved is then written: false, or one backward
  /// pass for all losses of a step, for graphs that are used again.
  /// Python: DistributedDataParallel(broadcast_buffers=True).
  bool broadcast_buffers = true;
};

/// A model that replicate() prepared. A handle.
class DTENSOR_API ReplicatedModule {
 public:
  explicit ReplicatedModule(std::shared_ptr<detail::Replication> replication);

  /// The next backward passes average nothing: gradients add up on this rank
  /// until one that does, which averages their sum.
  /// Python: DistributedDataParallel.no_sync().
  void set_requires_gradient_sync(bool requires_sync);

 private:
  std::shared_ptr<detail::Replication> replication_;
};

/// From now on the backward passes average the gradients of the module's
/// parameters over the ranks of `mesh`, which has one dimension and whose ranks
/// have the same values. Parameters that parallelize_module made DTensors keep
/// their layout. A parameter that no rank has used gets no gradient; one that
/// some have not used counts as zero there.
/// torch::autograd::grad gives what it would give without this.
/// Throws ValueError for a mesh of several dimensions, for one whose ranks a
/// parameter is spread over, and for a module that is replicated already.
/// Whatever distributes parameters comes before it.
DTENSOR_API ReplicatedModule replicate(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ReplicateOptions& options = {});

/// Gives the buffers of `module` the values that the first rank of `mesh`
/// (default: the current one) has. All ranks of the mesh call it. replicate()
/// does so by itself; call it for units of fully_shard, whose batch norms see
/// other data on every rank, before a checkpoint.
/// Python: what DistributedDataParallel does before each forward.
DTENSOR_API void broadcast_buffers(
    const torch::nn::Module& module,
    const DeviceMesh& mesh = {});

} // namespace dtensor
