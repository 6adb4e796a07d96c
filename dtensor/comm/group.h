// SPDX-License-Identifier: BSD-3-Clause
// Group: one rank's membership in an ordered set of ranks that communicate.
//
// Groups offer the collectives that all other layers are built on. The
// collectives are synchronous: when a call returns, its result is ready and its
// input may be changed. Functions whose names end in _async return a Pending at
// once, and the caller waits for its result later. No collective changes its
// input (broadcast and scatter included). A group of one rank copies nothing
// and returns the input itself.
//
// A group belongs to the rank that made it. Every function throws RuntimeError
// if another rank calls it, or if the group's ranks have ended.
//
// Reductions give bitwise equal results on all ranks. A World (comm/world.h)
// makes groups, on top of a GroupBackend (comm/group_backend.h).
// Python: torch.distributed._functional_collectives.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

struct Collective;
struct CollectiveResult;
class GroupBackend;
struct GroupMembers;
class World;

class DTENSOR_API Group {
 public:
  /// Makes the group of the ranks of `backend`, or the group of this rank
  /// alone, which needs no backend.
  Group(std::shared_ptr<GroupBackend> backend, std::string label);
  explicit Group(GroupMembers alone);

  /// rank() is this rank's position in ranks(); size() is the number of ranks.
  int64_t rank() const {
    return rank_;
  }
  int64_t size() const {
    return static_cast<int64_t>(ranks_.size());
  }
  /// Global ranks, in group order.
  const std::vector<int64_t>& ranks() const {
    return ranks_;
  }
  /// Name in messages and CommDebugMode: the mesh dimension's name or number.
  const std::string& label() const {
    return label_;
  }

  // The functions below notify this rank's observers (comm/observer.h). They
  // throw TypeError for a DTensor or a dtype that cannot be reduced, IndexError
  // for a wrong dimension or rank, and ValueError for sizes that do not fit.

  /// Reduces tensors of equal shape over all ranks. The result is bitwise equal
  /// on all ranks. kAvg divides the sum and needs a floating-point or complex
  /// dtype.
  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op);

  /// True if the collectives below exchange sizes that the caller does not
  /// pass. Passing sizes from a layout saves a message. All ranks pass them, or
  /// none.
  bool exchanges_sizes() const {
    return exchanges_sizes_;
  }

  /// Concatenates the inputs of all ranks along `dim` in rank order. Sizes
  /// along `dim` may differ and may be 0; other dimensions must agree. sizes[r]
  /// is rank r's size along `dim`.
  at::Tensor
  all_gather(const at::Tensor& input, int64_t dim, SizesRef sizes = {});

  /// Reduces over all ranks, then gives each rank a shard along `dim`, in rank
  /// order. Rank r gets sizes[r] elements along `dim`. By default, shards are
  /// those of torch.chunk, which may be uneven or empty.
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      int64_t dim,
      ReduceOp op,
      SizesRef sizes = {});

  /// Sends inputs[r] to rank r; returns the tensors received from each rank.
  /// Shapes may differ between ranks and be empty; dtypes must agree. shapes[r]
  /// is the shape of the tensor received from rank r.
  std::vector<at::Tensor> all_to_all(
      const std::vector<at::Tensor>& inputs,
      c10::ArrayRef<Sizes> shapes = {});

  /// Redistributes from sharded along `gather_dim` to sharded along
  /// `shard_dim`: sends the r-th torch.chunk of `input` along `shard_dim` to
  /// rank r, and concatenates the received chunks along `gather_dim`. Sizes
  /// along `gather_dim` (sizes[r] for rank r) may differ between ranks; other
  /// dimensions must agree. The two dimensions must differ.
  /// Python: torch.ops._dtensor.shard_dim_alltoall.
  at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes = {});

  /// True if the async collectives below make progress in the background (Gloo,
  /// NCCL), false if only inside wait() (threads).
  bool progresses_in_background(c10::DeviceType device) const;

  /// Asynchronous versions: they start the collective and return at once. An
  /// input that the caller owns alone (moved in) is read in place. Any other
  /// input is copied, so the caller may change it at once. A defined `out`
  /// receives the result. `out` must be contiguous, have the result's shape and
  /// dtype, and stay unused until the result is ready. `gathered_size` is the
  /// result's size along `dim`.
  ///
  /// All ranks must enter a group's asynchronous collectives in the same order.
  /// If ranks are processes, their order relative to synchronous collectives
  /// must agree, too; if ranks are threads, it does not matter.
  PendingPtr
  all_reduce_async(at::Tensor input, ReduceOp op, at::Tensor out = {});
  PendingPtr
  all_gather_async(at::Tensor input, int64_t dim, int64_t gathered_size);
  PendingPtr all_gather_async(at::Tensor input, int64_t dim, SizesRef sizes);
  PendingPtr reduce_scatter_async(
      at::Tensor input,
      int64_t dim,
      ReduceOp op,
      at::Tensor out = {},
      SizesRef sizes = {});
  PendingPtr shard_dim_alltoall_async(
      at::Tensor input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes = {});
  /// Sends sent[r] elements of `input`, a contiguous tensor, to each rank r, in
  /// order. Returns a one-dimensional tensor with received[r] elements from
  /// each rank r, in order. `input` is always read in place, without a copy: it
  /// must not be written to any more, but may still be read. In a group of one
  /// rank, the result is `input`, flattened.
  PendingPtr
  all_to_all_async(at::Tensor input, SizesRef sent, SizesRef received);

  /// Returns the root's tensor on every rank. Other ranks pass a tensor of the
  /// same shape and dtype; its contents are not read.
  at::Tensor broadcast(const at::Tensor& input, int64_t root);

  /// Returns the root's inputs[r] on rank r. Other ranks pass an empty list and
  /// a tensor `like` of the expected shape and dtype.
  at::Tensor scatter(
      const std::vector<at::Tensor>& inputs,
      const at::Tensor& like,
      int64_t root);

  /// Returns every rank's tensor on the root, an empty list elsewhere. Shapes
  /// may differ.
  std::vector<at::Tensor> gather(const at::Tensor& input, int64_t root);

  /// Point-to-point messages between members, matched by order and `tag`.
  /// recv() returns a tensor of the shape and dtype of `like`.
  void send(const at::Tensor& input, int64_t to, int64_t tag = 0);
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag = 0);

  /// Returns once every rank has called it.
  void barrier();

  /// Gathers one string from every rank, to check that ranks agree. Observers
  /// are not notified.
  std::vector<std::string> all_gather_strings(const std::string& mine);

  /// Records that this rank assumed the global shape of `spec`. If the ranks
  /// recorded different shapes and the backend compares calls (checked() in
  /// comm/group_backend.h), the next collective throws ValueError on every
  /// rank.
  void assume(const Spec& spec);

 private:
  /// Throws unless this thread is the rank that made the group.
  void check_owned_by_this_rank(std::string_view where) const;
  /// Submit a collective. run() also waits.
  CollectiveResult run(Collective&& collective);
  PendingPtr start(Collective&& collective);
  PendingPtr
  gather_async(at::Tensor input, int64_t dim, int64_t total, SizesRef parts);

  std::vector<int64_t> ranks_;
  int64_t rank_;
  std::string label_;
  bool exchanges_sizes_ = false;
  std::shared_ptr<World> owner_;
  std::shared_ptr<GroupBackend> backend_;
};

using GroupPtr = std::shared_ptr<Group>; // shared by its users

} // namespace dtensor
