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

/// Method of combining a rank's queries with the keys and values of other
/// ranks.
enum class RotateMethod {
  /// "allgather": gathers all keys and values while the rank attends to its
  /// own.
  kAllGather,
  /// "alltoall": passes keys and values around a ring of ranks. The next block
  /// is in flight while the rank attends to the current one. Least memory.
  kAllToAll,
  /// "ulysses": exchanges heads. Each rank computes some of the heads, for
  /// which it gets the tokens of all ranks. Not in Python.
  kUlysses,
};

/// Options for context_parallel().
struct ContextParallelOptions {
  /// Full tensors with the same values on every rank, such as tokens and
  /// positions. Inside the scope each one is this rank's shard along its
  /// dimension in `buffer_seq_dims`; after the scope it is the full tensor
  /// again.
  std::vector<at::Tensor> buffers = {};
  std::vector<int64_t> buffer_seq_dims = {};
  /// Subset of `buffers` that stays sharded after the scope. The memory of the
  /// full tensor is freed at once.
  std::vector<at::Tensor> no_restore_buffers = {};
  /// Default: the method of set_rotate_method().
  std::optional<RotateMethod> rotate_method = std::nullopt;
  /// Balances causal attention: each rank gets a chunk from the front of the
  /// sequence and its mirror image from the back. If false, buffers are sharded
  /// as by torch.chunk. Default: true if there are buffers and the method is
  /// not kUlysses. Without buffers, this option states the order in which
  /// tensors are already sharded; the default is then that of the enclosing
  /// scope on the same ranks, or false. kUlysses needs an enclosing scope that
  /// does not balance.
  std::optional<bool> load_balance = std::nullopt;
};

/// Scope in which scaled_dot_product_attention of this thread works on sharded
/// sequences (dimension -2 of query, key and value) over a 1-D `mesh`. The
/// result is sharded likewise:
///
/// - Plain tensors are local shards. They have the length of this rank's shard
///   of the buffers; without buffers, all shards have the same length. The
///   result is a local shard.
/// - DTensors are redistributed to Shard(-2) if at least one of the three is
///   sharded along its sequence on `mesh`, or on a mesh dimension with the same
///   ranks. The result is Shard(-2). On other mesh dimensions batches and heads
///   may be sharded, as by tensor parallelism. The scope has no effect on
///   DTensors without a sharded sequence.
///
/// Attention is exact, with or without a causal mask, with grouped queries, for
/// any number of tokens on any device. The backward pass may run after the
/// scope. Half-precision results and gradients are accumulated in float32.
/// Scopes nest: the innermost applies.
///
/// Throws ValueError for:
/// - a mesh of several dimensions;
/// - different numbers of buffers and buffer_seq_dims;
/// - buffers of different lengths;
/// - a buffer that is listed twice, requires grad, is a DTensor or is
///   undefined;
/// - no_restore_buffers that are not in `buffers`;
/// - load_balance with kUlysses.
///
/// Throws IndexError for a dimension that a buffer does not have, and
/// RuntimeError on a rank outside of the mesh. Attention throws
/// NotImplementedError for attn_mask and dropout, and ValueError for shards
/// with the wrong length. The fused layers _native_multi_head_attention and
/// _transformer_encoder_layer_fwd throw NotImplementedError for plain tensors.
///
/// Python: torch.distributed.tensor.experimental.context_parallel. In Python
/// the sequence length must be divisible by twice the number of ranks, and load
/// balancing requires causal attention. The backward pass must be inside the
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
/// initial default), "alltoall" or "ulysses". Throws ValueError for any other
/// name. Python: torch.distributed.tensor.experimental.set_rotate_method.
DTENSOR_API void set_rotate_method(std::string_view rotate_method);

/// Returns the full tensors of local shards, in sequence order. Each buffers[i]
/// must be sharded along seq_dims[i] like the buffers of this rank's innermost
/// open scope on `mesh`, or of the latest scope if all have ended. Without such
/// a scope, the shards must be those of torch.chunk. Takes one all-gather per
/// buffer. Not differentiable.
/// Throws ValueError for lists of different lengths and for sizes that no scope
/// produces, and TypeError for a DTensor (use full_tensor()).
/// Python: torch.distributed.tensor.experimental.context_parallel_unshard.
DTENSOR_API std::vector<at::Tensor> context_parallel_unshard(
    const DeviceMesh& mesh,
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& seq_dims);

} // namespace dtensor
