// SPDX-License-Identifier: BSD-3-Clause
// context_parallel: attention over a sequence that is cut, for sequences too
// long for one rank.
//
//   const auto scope = context_parallel(
//       mesh["cp"], {.buffers = {tokens, labels}, .buffer_seq_dims = {1, 1}});
//   auto loss = cross_entropy(model->forward(tokens), labels);   // of my part
//   loss.backward();
//
// docs/guides/long_context.md is the guide.
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

/// How a rank's queries meet the keys and values of the other ranks.
enum class RotateMethod {
  /// All of them are gathered while it attends to its own. "allgather".
  kAllGather,
  /// They go round from rank to rank, the next ones while it attends to these.
  /// The least memory. "alltoall".
  kAllToAll,
  /// They do not: a rank gives its tokens of other heads away for all tokens of
  /// its own heads (Ulysses). Python: not. "ulysses".
  kUlysses,
};

/// What context_parallel is given beside the mesh.
struct ContextParallelOptions {
  /// Whole tensors that every rank has alike, such as tokens and positions. In
  /// the scope each is this rank's part along its dimension of buffer_seq_dims,
  /// and whole again afterwards, as it was.
  std::vector<at::Tensor> buffers = {};
  std::vector<int64_t> buffer_seq_dims = {};
  /// Those of the buffers that stay parts. Their whole memory goes at once.
  std::vector<at::Tensor> no_restore_buffers = {};
  /// By default what set_rotate_method() said.
  std::optional<RotateMethod> rotate_method = std::nullopt;
  /// Whether a part is a piece from the front of the sequence and its mirror
  /// from the back, which is as much causal attention on every rank, instead of
  /// torch.chunk's. By default where there are buffers, and heads are not
  /// exchanged. Without buffers the tensors have to be in that order already.
  std::optional<bool> load_balance = std::nullopt;
};

/// While it lives, scaled_dot_product_attention of this thread takes sequences
/// (dimension -2 of query, key and value) as cut over `mesh`, which has one
/// dimension, and leaves them so:
///
/// - plain tensors are this rank's parts: of the length of the buffers, or, if
///   there are none, all of one size. They give a part of the result;
/// - DTensors of which one is cut along its sequence on that mesh, or on a mesh
///   with the same ranks in one dimension: all three are brought to Shard(-2)
///   there, if they are not, and so comes the result. On other mesh dimensions
///   batches and heads may be cut, as by tensor parallelism. All other DTensors
///   are computed as outside.
///
/// Exact for causal and other attention, grouped queries, any number of tokens
/// on any device; the backward pass may be outside. Half precision is summed in
/// float32, and so are gradients under way. Nests: the innermost scope holds.
///
/// Throws ValueError: a mesh of several dimensions, buffers unlike
/// buffer_seq_dims in number or of several lengths, a buffer twice, one that
/// requires grad, is a DTensor or undefined, no_restore_buffers that are no
/// buffers, load_balance with exchanged heads; IndexError: a dimension that a
/// buffer does not have; RuntimeError on a rank outside the mesh. Attention
/// throws NotImplementedError for masks and dropout, and ValueError for parts
/// of another length.
///
/// Python: torch.distributed.tensor.experimental.context_parallel, where the
/// sequence has to divide by twice the ranks, attention with load balancing has
/// to be causal, the backward pass has to be inside, and tensors are a GPU's.
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

/// As Python's context manager is called.
[[nodiscard]] inline ContextParallel context_parallel(
    const DeviceMesh& mesh,
    const ContextParallelOptions& options = {}) {
  return ContextParallel(mesh, options);
}

/// The method of this rank's scopes from now on that name none: "allgather",
/// which it is at first, "alltoall" or "ulysses". Throws ValueError for another
/// name. Python: torch.distributed.tensor.experimental.set_rotate_method.
DTENSOR_API void set_rotate_method(std::string_view rotate_method);

/// Parts, whole and in the order of the sequence: buffers[i] is cut along
/// seq_dims[i], as by the scope on `mesh` that this rank opened last, which may
/// have ended. Of a rank that opened none they are torch.chunk's. One
/// all-gather each; not differentiable.
/// Throws ValueError for lists of different lengths, and for parts that are no
/// scope's; TypeError for a DTensor, which has full_tensor().
/// Python: torch.distributed.tensor.experimental.context_parallel_unshard.
DTENSOR_API std::vector<at::Tensor> context_parallel_unshard(
    const DeviceMesh& mesh,
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& seq_dims);

} // namespace dtensor
