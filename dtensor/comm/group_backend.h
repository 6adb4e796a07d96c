// SPDX-License-Identifier: BSD-3-Clause
// GroupBackend: interface of the communication between the ranks of one group.
//
// A backend implements the seven pure virtual functions, which take
// one-dimensional buffers and counts of elements, as in MPI, NCCL and Gloo. All
// other functions have defaults built on these seven; a backend may override
// them with faster versions. Group, the class that programs use, checks
// arguments and the calling rank, and notifies observers, so a backend need
// not. To compare the calls of different ranks, wrap a backend in checked().
//
//   GroupBackendPtr MyWorld::make_backend(GroupMembers members) {
//     return checked(std::make_shared<MyBackend>(std::move(members)));
//   }
//
// Contract of every function:
// - Only the rank that made the backend calls it. The group has at least two
//   ranks. All members make the same calls in the same order.
// - Inputs are plain, contiguous tensors of one dtype on one device. They must
//   not be changed, nor kept after the function returns.
// - Results are contiguous and share no memory with inputs. The device's stream
//   orders inputs and results, without host synchronization.
// - Reductions give bitwise equal results on all ranks, in any fixed order.
// - Counts are always given, and may be 0.
// - A failure throws on the rank that detects it.
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

/// Members of a group, and this rank's place among them.
struct GroupMembers {
  /// Global ranks, in group order.
  std::vector<int64_t> ranks;
  /// This rank's position in `ranks`. All functions below use such positions.
  int64_t rank = 0;
  /// Name of the group in messages.
  std::string label;
};

/// Preparation that a backend needs for its calls.
struct BackendNeeds {
  /// If true, Group excludes autograd and makes inputs contiguous.
  bool plain = true;
  /// True if the backend needs sizes and shapes: the ranks exchange those that
  /// the caller does not pass.
  bool sizes = true;
  /// Device for calls without a tensor: barriers, strings, exchanged sizes.
  c10::Device device = c10::Device(c10::kCPU);
};

class DTENSOR_API GroupBackend {
 public:
  using Tensors = std::vector<at::Tensor>; // inputs or results
  using Shapes = c10::ArrayRef<Sizes>;     // of inputs or results

  explicit GroupBackend(GroupMembers members, BackendNeeds needs = {})
      : members_(std::move(members)),
        needs_(needs) {}
  virtual ~GroupBackend() = default;
  GroupBackend(const GroupBackend&) = delete;
  GroupBackend& operator=(const GroupBackend&) = delete;

  /// Returns the members given to the constructor.
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

  // Functions to implement. Buffers are one-dimensional, except for all_reduce,
  // broadcast, send and recv: their results have the input's shape.

  /// Reduces `input` over all members, on each of them. kAvg divides the sum.
  virtual at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) = 0;

  /// Concatenates the inputs of all members in order; counts[r] is the number
  /// of elements of member r's input.
  virtual at::Tensor all_gather(const at::Tensor& input, SizesRef counts) = 0;

  /// Reduces `input` over all members and scatters the result in order: member
  /// r gets counts[r] elements.
  virtual at::Tensor
  reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op) = 0;

  /// Sends sent[r] elements of `input` to each member r, in order. Returns
  /// received[r] elements from each member r, in order.
  virtual at::Tensor
  all_to_all(const at::Tensor& input, SizesRef sent, SizesRef received) = 0;

  /// Returns the root's input. Others pass a tensor of its shape and dtype; its
  /// contents are not read.
  virtual at::Tensor broadcast(const at::Tensor& input, int64_t root) = 0;

  /// Point-to-point messages between two members, matched by order and `tag`.
  /// recv() returns a tensor of the shape and dtype of `like`; its contents are
  /// not read.
  virtual void send(const at::Tensor& input, int64_t to, int64_t tag) = 0;
  virtual at::Tensor
  recv(const at::Tensor& like, int64_t from, int64_t tag) = 0;

  /// Reduces a tensor that the caller owns alone: it may be overwritten and
  /// returned. The default calls all_reduce().
  virtual at::Tensor all_reduce_in_place(const at::Tensor& tensor, ReduceOp op);

  // Functions with defaults. `dim` is non-negative; sizes[r] is the size of
  // member r's shard along `dim`. If the callers pass no sizes or shapes, the
  // list is empty on all members.

  /// Concatenates the inputs of all members along `dim`.
  virtual at::Tensor
  gather_along(const at::Tensor& input, int64_t dim, SizesRef sizes);

  /// Reduces `input` over all members and gives each its shard along `dim`. If
  /// `sizes` is empty, the shard is the member's torch.chunk.
  virtual at::Tensor reduce_scatter_along(
      const at::Tensor& input,
      int64_t dim,
      SizesRef sizes,
      ReduceOp op);

  /// Sends the r-th torch.chunk of `input` along `shard_dim` to member r, and
  /// concatenates received chunks along `gather_dim`, the dimension of `sizes`.
  virtual at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes);

  /// Sends inputs[r] to member r; receives a tensor of shape shapes[r] from it.
  virtual Tensors exchange_parts(const Tensors& inputs, Shapes shapes);

  /// Returns the root's inputs[r] on member r. Other members pass no inputs,
  /// and as `like` a tensor of the expected shape and dtype. The root may pass
  /// an undefined `like`.
  virtual at::Tensor
  scatter(const Tensors& inputs, const at::Tensor& like, int64_t root);

  /// Returns all inputs on the root, nothing elsewhere. Input r has shapes[r].
  virtual Tensors gather(const at::Tensor& input, Shapes shapes, int64_t root);

  /// Returns once every member has called it.
  virtual void barrier();
  /// Gathers one string from every member.
  virtual std::vector<std::string> all_gather_strings(const std::string& mine);

  /// Starts an asynchronous collective. The default has completed on return.
  virtual PendingPtr start(AsyncCollective collective);
  /// Returns true if asynchronous collectives progress in the background, by
  /// the backend's own threads or streams. False by default.
  virtual bool progresses_in_background(c10::DeviceType device) const;

  /// See Group::assume(). The default does nothing.
  virtual void assume(const Spec& spec);

  /// Marks this rank as failed, for the reason `why`, although its groups may
  /// still exist. Peers that wait for this rank must get an error. The default
  /// relies on the transport to notice closed connections.
  virtual void abandon(const std::string& why);

 protected:
  /// Gathers the sizes of all members' shards; `mine` is this rank's.
  Sizes exchange_sizes(int64_t mine);
  /// Exchanges the shapes of `sent`; result[r] is the shape that member r
  /// sends.
  std::vector<Sizes> exchange_shapes(const Tensors& sent);

 private:
  GroupMembers members_;
  BackendNeeds needs_;
};

using GroupBackendPtr = std::shared_ptr<GroupBackend>; // shared by groups

/// Wraps `backend` so that ranks compare their calls and assumed shapes before
/// each collective. If they differ, all ranks throw ValueError. Costs a small
/// all_gather per call. (Ranks that are threads always compare.)
DTENSOR_API GroupBackendPtr checked(GroupBackendPtr backend);

} // namespace dtensor
