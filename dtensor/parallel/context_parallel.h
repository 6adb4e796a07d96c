// SPDX-License-Identifier: BSD-3-Clause
// context_parallel: attention over a sharded sequence, for sequences too long
// for one rank.
//
//   const auto scope = context_parallel(
//       mesh["cp"], {.buffers = {tokens, labels}, .buffer_seq_dims = {1, 1}});
//   auto loss = cross_entropy(model->forward(tokens), labels);  // local shard
//   loss.backward();
//
// Guide: docs/guides/long_context.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace dtensor {

namespace detail {
struct ContextScope;
} // namespace detail

/// Method by which a rank's queries meet the keys and values of other ranks.
enum class RotateMethod {
  /// "allgather": gathers all keys and values while the rank attends to its
  /// own.
  kAllGather,
  /// "alltoall": passes keys and values around a ring of ranks. The next block
  /// is in flight while the rank attends to the current one. Least memory.
  kAllToAll,
  /// "ulysses": exchanges heads. A rank sends its tokens of other heads and
  /// gets all tokens of its own heads. Not in Python.
  kUlysses,
};

/// Options for context_parallel().
struct ContextParallelOptions {
  /// Full tensors with the same values on every rank, such as tokens and
  /// positions. Inside the scope each one is this rank's shard along its
  /// dimension of buffer_seq_dims; after the scope it is the full tensor again.
  std::vector<at::Tensor> buffers = {};
  std::vector<int64_t> buffer_seq_dims = {};
  /// Subset of `buffers` that stays sharded after the scope. The memory of the
  /// full tensor is freed at once.
  std::vector<at::Tensor> no_restore_buffers = {};
  /// Default: the method of set_rotate_method().
  std::optional<RotateMethod> rotate_method = std::nullopt;
  /// Shards buffers as a chunk from the front of the sequence and its mirror
  /// image from the back, which balances causal attention, instead of
  /// torch.chunk's order. Default: true if there are buffers and the method is
  /// not kUlysses. Without buffers, tensors must be in that order already.
  std::optional<bool> load_balance = std::nullopt;
};

/// Scope in which scaled_dot_product_attention of this thread works on sharded
/// sequences (dimension -2 of query, key and value) over a 1-D `mesh`. The
/// result is sharded likewise:
///
/// - Plain tensors are local shards. Their lengths match those of the buffers;
///   without buffers, all shards have one size. The result is a local shard.
/// - DTensors of which at least one is sharded along its sequence on that mesh,
///   or on a mesh dimension with the same ranks: all three are redistributed to
///   Shard(-2) there, and the result is Shard(-2). On other mesh dimensions
///   batches and heads may be sharded, as by tensor parallelism. Other DTensors
///   are computed as outside of the scope.
///
/// Attention is exact, causal or not, with grouped queries, for any number of
/// tokens on any device. The backward pass may run after the scope. Half
/// precision accumulates in float32, also for gradients in flight. Scopes nest:
/// the innermost applies.
///
/// Throws ValueError for a mesh of several dimensions; different numbers of
/// buffers and buffer_seq_dims; buffers of different lengths; a buffer that is
/// listed twice, requires grad, is a DTensor or is undefined;
/// no_restore_buffers that are not in `buffers`; and load_balance with
/// kUlysses. Throws IndexError for a dimension that a buffer does not have, and
/// RuntimeError on a rank outside of the mesh. Attention throws
/// NotImplementedError for masks and dropout, and ValueError for shards of
/// another length.
///
/// Python: torch.distributed.tensor.experimental.context_parallel. There the
/// sequence length must be divisible by twice the number of ranks, load
/// balancing requires causal attention, the backward pass must be inside the
/// scope, and only GPU tensors are supported.
class DTENSOR_API ContextParallel {
 public:
  explicit ContextParallel(
      const DeviceMesh& mesh,
      const ContextParallelOptions& options = {});
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

 private:
  std::shared_ptr<detail::ContextScope> scope_;
  bool was_watched_;
};

/// Opens the scope, with the spelling of Python's context manager.
[[nodiscard]] inline ContextParallel context_parallel(
    const DeviceMesh& mesh,
    const ContextParallelOptions& options = {}) {
  return ContextParallel(mesh, options);
}

/// Sets the default method of this rank's later scopes: "allgather" (the
/// initial default), "alltoall" or "ulysses". Throws ValueError for another
/// name. Python: torch.distributed.tensor.experimental.set_rotate_method.
DTENSOR_API void set_rotate_method(std::string_view rotate_method);

/// Returns full tensors from local shards, in the order of the sequence.
/// buffers[i] is sharded along seq_dims[i] as by the latest scope of this rank
/// on `mesh`, which may have ended (without one: as by torch.chunk). Takes one
/// all-gather per buffer. Not differentiable.
/// Throws ValueError for lists of different lengths and for sizes that no scope
/// produces, and TypeError for a DTensor (use full_tensor()).
/// Python: torch.distributed.tensor.experimental.context_parallel_unshard.
DTENSOR_API std::vector<at::Tensor> context_parallel_unshard(
    const DeviceMesh& mesh,
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& seq_dims);

} // namespace dtensor
