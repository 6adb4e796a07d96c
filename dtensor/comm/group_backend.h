// SPDX-License-Identifier: BSD-3-Clause
// GroupBackend: what carries tensors between the ranks of one group.
//
// A backend writes the seven functions of the first half, over one-dimensional
// buffers and counts as MPI, NCCL and Gloo have them; all else has a default
// made of these seven, for it to replace where it can do better. Group, which
// programs see, checks arguments, tells observers and knows whose it is, so
// that a backend does none of this. Neither does it compare what ranks call:
// checked() does, around any backend.
//
//   GroupBackendPtr MyWorld::make_backend(GroupMembers members) {
//     return checked(std::make_shared<MyBackend>(std::move(members)));
//   }
//
// What every function is promised, and promises:
// - It is called by its rank, in a group of at least two, and by all members in
//   one order.
// - Inputs are plain, contiguous tensors of one dtype, on one device. They are
//   not to be changed, and are let go when the function returns.
// - Results are contiguous, share no memory with inputs, and are ready in the
//   order of the device's current stream, as inputs are: nobody synchronises.
// - Reductions give the same bits on all ranks. In which order they combine the
//   terms is the backend's affair.
// - All sizes are those of the layout: each member knows how much comes from
//   whom, and none asks. They may be 0.
// - What cannot be done is an error on the rank that finds it so.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <dtensor/api.h>
#include <dtensor/comm/async_collective.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

/// Who is in a group.
struct GroupMembers {
  /// Global ranks, in group order.
  std::vector<int64_t> ranks;
  /// My position among them; what follows names members by position too.
  int64_t rank = 0;
  /// What messages call the group.
  std::string label;
};

/// What is done for a backend before it is called.
struct BackendNeeds {
  /// Sets autograd aside, and makes inputs contiguous.
  bool plain = true;
  /// Gives the sizes that a layout knows, which ranks ask for otherwise.
  bool sizes = true;
  /// Where what has no tensor lies: barriers, strings, sizes asked for.
  c10::Device device = c10::Device(c10::kCPU);
};

class DTENSOR_API GroupBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Shapes = c10::ArrayRef<Sizes>;

  explicit GroupBackend(GroupMembers members, BackendNeeds needs = {})
      : members_(std::move(members)),
        needs_(needs) {}
  virtual ~GroupBackend() = default;
  GroupBackend(const GroupBackend&) = delete;
  GroupBackend& operator=(const GroupBackend&) = delete;

  /// What it was made with.
  const GroupMembers& members() const {
    return members_;
  }
  const BackendNeeds& needs() const {
    return needs_;
  }
  int64_t rank() const {
    return members_.rank;
  }
  int64_t size() const {
    return static_cast<int64_t>(members_.ranks.size());
  }
  const std::string& label() const {
    return members_.label;
  }

  // What a backend writes. Buffers are one-dimensional, but for those of
  // all_reduce, broadcast, send and recv, whose results have the input's shape.

  /// `input` reduced over all members, on each of them. kAvg divides the sum.
  virtual at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) = 0;

  /// The inputs of all members one after the other, counts[r] elements of
  /// member r.
  virtual at::Tensor all_gather(const at::Tensor& input, SizesRef counts) = 0;

  /// `input` reduced over all members, of which member r gets counts[r]
  /// elements, those of member 0 first.
  virtual at::Tensor
  reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op) = 0;

  /// Of `input`, sent[r] elements go to member r, in order. The result is
  /// received[r] elements of member r, likewise.
  virtual at::Tensor
  all_to_all(const at::Tensor& input, SizesRef sent, SizesRef received) = 0;

  /// The root's input. Others pass a tensor of its shape and dtype, whose
  /// contents are not read.
  virtual at::Tensor broadcast(const at::Tensor& input, int64_t root) = 0;

  /// Messages between two members, matched by order and `tag`. recv() returns a
  /// tensor of the shape and dtype of `like`, whose contents are not read.
  virtual void send(const at::Tensor& input, int64_t to, int64_t tag) = 0;
  virtual at::Tensor
  recv(const at::Tensor& like, int64_t from, int64_t tag) = 0;

  /// all_reduce() of a tensor that nobody else holds: it may be written to, and
  /// returned. By default it is not.
  virtual at::Tensor all_reduce_in_place(const at::Tensor& tensor, ReduceOp op);

  // What has a default. `dim` is counted from the front; sizes[r] is the size
  // along it of member r's part. A caller that knows no sizes or shapes gives
  // an empty list, on all members.

  /// The inputs of all members concatenated along `dim`.
  virtual at::Tensor
  gather_along(const at::Tensor& input, int64_t dim, SizesRef sizes);

  /// `input` reduced over all members, of which each gets a part along `dim`:
  /// by default its torch.chunk.
  virtual at::Tensor reduce_scatter_along(
      const at::Tensor& input,
      int64_t dim,
      SizesRef sizes,
      ReduceOp op);

  /// torch.chunk number r of `input` along `shard_dim` goes to member r; what
  /// comes is concatenated along `gather_dim`, along which `sizes` are.
  virtual at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes);

  /// inputs[r] goes to member r; shapes[r] is that of what comes from it.
  virtual Tensors exchange_parts(const Tensors& inputs, Shapes shapes);

  /// inputs[r] of the root, on member r. Others pass no inputs and a tensor
  /// `like` what they get, which on the root may be undefined.
  virtual at::Tensor
  scatter(const Tensors& inputs, const at::Tensor& like, int64_t root);

  /// Every member's input, at the root: shapes[r] is that of member r.
  virtual Tensors gather(const at::Tensor& input, Shapes shapes, int64_t root);

  /// Returns once every member has called it.
  virtual void barrier();
  /// Strings of all members.
  virtual std::vector<std::string> all_gather_texts(const std::string& mine);

  /// Enters a collective. By default it has ended when this returns.
  virtual PendingPtr start(AsyncCollective collective);
  /// Whether what was entered goes on by itself while this rank computes, by
  /// threads or streams of the backend's own. By default it does not.
  virtual bool progresses_alone(c10::DeviceType device) const;

  /// Group::assume(). By default nobody compares.
  virtual void assume(const Spec& spec);

  /// This rank has failed, of `why`, and does no more, though somebody may keep
  /// its groups: who waits for it is to get an error. By default they notice
  /// when the backend goes, if they do.
  virtual void abandon(const std::string& why);

 protected:
  /// What the members say of their parts, where no layout does.
  Sizes ask_sizes(int64_t mine);
  /// shapes[r]: that of what member r sends here.
  std::vector<Sizes> ask_shapes(const Tensors& sent);

 private:
  GroupMembers members_;
  BackendNeeds needs_;
};

using GroupBackendPtr = std::shared_ptr<GroupBackend>;

/// `backend`, but that its ranks compare what they call and what they assume
/// before each collective; where they differ, all of them throw ValueError.
/// Costs a small all_gather each time. (Ranks that are threads compare anyway.)
DTENSOR_API GroupBackendPtr checked(GroupBackendPtr backend);

} // namespace dtensor
