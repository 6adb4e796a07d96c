// SPDX-License-Identifier: BSD-3-Clause
// Group: one rank's membership in an ordered set of ranks that communicate.
//
// The collectives every layer above is built on. They are synchronous: when a
// call returns, its result is ready and its input may be changed; those that
// end in _async return at once, and their result is waited for. They never
// change their input (broadcast, scatter included). A group of one rank copies
// nothing and returns the input itself.
//
// A group belongs to the rank that made it. Used by another one, or when its
// ranks have ended, every function below throws RuntimeError.
//
// Reductions have the same bits on all ranks. A World (comm/world.h) makes
// groups, out of what carries their tensors (comm/group_backend.h).
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

struct AsyncCollective;
class GroupBackend;
struct GroupMembers;
class World;

class DTENSOR_API Group {
 public:
  /// A group of several ranks, or, without a backend, of this one alone.
  Group(std::shared_ptr<GroupBackend> backend, std::string label);
  explicit Group(GroupMembers alone);

  /// My position in ranks(), and how many there are.
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
  /// What messages and CommDebugMode call it: the mesh dimension's name or
  /// number.
  const std::string& label() const {
    return label_;
  }

  // Each function below checks its arguments, which are plain tensors, tells
  // the observers of this rank (comm/observer.h) and has the backend do it; on
  // a group of one rank it does neither and returns the input.

  /// Reduction over all ranks of tensors of equal shape. Every rank gets
  /// bitwise the same result. kAvg divides the sum and needs a floating-point
  /// or complex dtype.
  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op);

  /// Whether the collectives below would ask the other ranks for sizes that
  /// are not given. Who knows them from a layout gives them then, and saves a
  /// message; all ranks do, or none.
  bool asks_for_sizes() const {
    return asks_for_sizes_;
  }

  /// The inputs of all ranks concatenated along `dim` in rank order. Sizes
  /// along `dim` may differ and may be 0; other dimensions must agree.
  /// sizes[r] is that of rank r along `dim`.
  at::Tensor
  all_gather(const at::Tensor& input, int64_t dim, SizesRef sizes = {});

  /// Reduces over all ranks, then gives each rank a part along `dim`, in rank
  /// order: rank r sizes[r] of it, and by default its torch.chunk (uneven and
  /// empty chunks included).
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      int64_t dim,
      ReduceOp op,
      SizesRef sizes = {});

  /// Sends inputs[r] to rank r; returns what came from each rank. Shapes may
  /// differ between ranks and be empty; dtypes must agree. shapes[r] is that of
  /// what comes from rank r.
  std::vector<at::Tensor> all_to_all(
      const std::vector<at::Tensor>& inputs,
      c10::ArrayRef<Sizes> shapes = {});

  /// From cut along `gather_dim` to cut along `shard_dim`: sends torch.chunk
  /// number r of `input` along `shard_dim` to rank r and concatenates what
  /// comes along `gather_dim`. Sizes along `gather_dim`, sizes[r] of rank r,
  /// may differ between ranks; other dimensions must agree, and the two must
  /// not be one.
  /// Python: torch.ops._dtensor.shard_dim_alltoall.
  at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes = {});

  /// Whether those below go on by themselves while this rank computes. Threads
  /// compute a result when somebody waits for it; Gloo's threads and NCCL's
  /// streams need nobody.
  bool progresses_alone(c10::DeviceType device) const;

  /// The same collectives, entered now and waited for later. An input that
  /// nobody else holds (moved in) is read in place; any other one is copied
  /// first, so that it may be changed at once. The result goes to `out` if
  /// that is defined: contiguous, of the result's shape and dtype, and in
  /// nobody else's use until then. `gathered_size` is that of the result along
  /// `dim`. A rank enters its group's asynchronous collectives in the same
  /// order as its peers; how they lie between the others does not matter to
  /// threads, and has to be alike over backends of processes.
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
  /// Of the elements of `input`, a contiguous tensor, sent[r] go to rank r, in
  /// order; the result is one-dimensional: received[r] elements of rank r,
  /// likewise. `input` is always read in place, without a copy: nobody may
  /// write to it any more, and others may go on reading it. A group of one rank
  /// returns it flat.
  PendingPtr
  all_to_all_async(at::Tensor input, SizesRef sent, SizesRef received);

  /// The root's tensor on every rank. Other ranks pass a tensor of the same
  /// shape and dtype, whose contents are not read.
  at::Tensor broadcast(const at::Tensor& input, int64_t root);

  /// inputs[r] of the root, on rank r. Other ranks pass an empty list and a
  /// tensor `like` of the shape and dtype that they expect.
  at::Tensor scatter(
      const std::vector<at::Tensor>& inputs,
      const at::Tensor& like,
      int64_t root);

  /// Every rank's tensor, at the root (an empty list elsewhere). Shapes may
  /// differ.
  std::vector<at::Tensor> gather(const at::Tensor& input, int64_t root);

  /// Point to point between members, matched by order and `tag`. recv returns
  /// a tensor of the shape and dtype of `like`.
  void send(const at::Tensor& input, int64_t to, int64_t tag = 0);
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag = 0);

  /// Returns once every rank has called it.
  void barrier();

  /// Strings of all ranks, for checks that ranks agree. Not observed.
  std::vector<std::string> all_gather_texts(const std::string& mine);

  /// Notes that this rank took the global shape of `spec` for granted. Nothing
  /// is communicated: the next collective throws ValueError on every rank if
  /// the ranks noted different shapes.
  void assume(const Spec& spec);

 private:
  /// Throws unless this thread is the rank that made the group.
  void check_mine(std::string_view where) const;
  PendingPtr enter(AsyncCollective collective);
  PendingPtr gather_async(
      at::Tensor input,
      int64_t dim,
      int64_t gathered_size,
      SizesRef parts);

  std::vector<int64_t> ranks_;
  int64_t rank_;
  std::string label_;
  bool asks_for_sizes_ = false;
  std::shared_ptr<World> owner_;
  std::shared_ptr<GroupBackend> backend_;
};

using GroupPtr = std::shared_ptr<Group>;

} // namespace dtensor
