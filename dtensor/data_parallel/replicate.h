// SPDX-License-Identifier: BSD-3-Clause
// replicate: data parallelism with a full model on every rank. Gradients are
// averaged during the backward pass.
//
//   replicate(*model, mesh["dp"]);
//   loss_of(model(my_batch)).backward();     // gradients are averages now
//
// average_gradients (parallel/gradients.h) averages after the backward pass;
// fully_shard keeps only a shard of the model on each rank.
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

/// Options for replicate().
struct ReplicateOptions {
  /// Bytes of gradients per all-reduce.
  int64_t bucket_cap_bytes = 25 << 20;
  /// Dtype in which gradients are averaged, unless their own dtype is wider.
  /// Unaveraged gradients of several backward passes are accumulated in it too;
  /// `.grad` is undefined meanwhile, and zero_grad() does not clear them. They
  /// are dropped if a backward pass fails. Default: the dtype of the gradient.
  /// Python: MixedPrecisionPolicy.reduce_dtype of replicate.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Broadcasts the module's buffers (such as batch norm statistics) from rank
  /// 0 of the mesh: in replicate(), and at the end of every backward pass that
  /// averages gradients. If `module` is declared with DTENSOR_MODULE, also
  /// broadcasts before a forward pass with gradients, if such a forward pass
  /// has run since the last broadcast. The broadcast overwrites buffers that an
  /// autograd graph may have saved. If a graph is used again after a backward
  /// pass, set this to false, or run one backward pass for all losses of a
  /// step.
  /// Python: DistributedDataParallel(broadcast_buffers=True).
  bool broadcast_buffers = true;
};

/// Handle to a model that replicate() prepared.
class DTENSOR_API ReplicatedModule {
 public:
  explicit ReplicatedModule(std::shared_ptr<detail::Replication> replication);

  /// Enables or disables averaging. While it is disabled, backward passes
  /// accumulate gradients locally; the first pass after it is enabled again
  /// averages their sum.
  /// Python: DistributedDataParallel.no_sync().
  void set_requires_gradient_sync(bool requires_sync);

 private:
  std::shared_ptr<detail::Replication> replication_;
};

/// Averages the gradients of the module's parameters over the ranks of `mesh`
/// in every later backward pass. `mesh` must be 1-D, and parameters must have
/// the same values on its ranks. DTensor parameters (from parallelize_module)
/// keep their layout. A rank that has not used a parameter contributes zeros. A
/// parameter that no rank has used gets no gradient. A frozen parameter takes
/// part once it requires grad, on all ranks at once. torch::autograd::grad is
/// unaffected. Throws ValueError for a mesh of several dimensions, a mesh with
/// ranks that a parameter or the shards of a buffer are distributed over, and a
/// module that is already replicated. Call replicate() after everything that
/// distributes or replaces parameters: backward passes throw RuntimeError after
/// a parameter was destroyed.
DTENSOR_API ReplicatedModule replicate(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ReplicateOptions& options = {});

/// Broadcasts the buffers of `module` from the first rank of `mesh` (default:
/// the current mesh). Every rank of the mesh must call this function. DTensor
/// buffers keep their layout. Throws ValueError for a DTensor whose local
/// shards differ between ranks of the mesh. A replicated module broadcasts its
/// buffers itself. With fully_shard, call this function before saving a
/// checkpoint of a model with batch norms, whose buffers differ because each
/// rank has different data.
/// Python: DistributedDataParallel does this before each forward.
DTENSOR_API void broadcast_buffers(
    const torch::nn::Module& module,
    const DeviceMesh& mesh = {});

} // namespace dtensor
