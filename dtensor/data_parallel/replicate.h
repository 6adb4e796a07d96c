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

#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <cstdint>
#include <memory>

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

} // namespace dtensor
