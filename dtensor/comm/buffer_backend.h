// SPDX-License-Identifier: BSD-3-Clause
// BufferBackend: a backend of seven functions, which take one-dimensional
// buffers and counts of elements, as in MPI, NCCL and Gloo. All other
// collectives are built on these.
//
//   class MyBackend final : public BufferBackend {
//    public:
//     using BufferBackend::BufferBackend;
//     at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override;
//     ...
//   };
//
//   GroupBackendPtr MyWorld::make_backend(GroupMembers members) {
//     return checked(std::make_shared<MyBackend>(std::move(members)));
//   }
//
// Counts are always given, and may be 0. Each function returns when its result
// is ready. See GroupBackend for the contract of inputs and results.
#pragma once

#include <dtensor/comm/group_backend.h>

namespace dtensor {

class DTENSOR_API BufferBackend : public GroupBackend {
 public:
  using GroupBackend::GroupBackend;

  // Buffers are one-dimensional, except for all_reduce, broadcast, send and
  // recv: their results have the input's shape.

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

  /// Runs any collective with the functions above. A backend with more
  /// functions than these may override submit(), and call
  /// BufferBackend::submit() for the other collectives.
  InFlight submit(Collective&& collective) override;
};

} // namespace dtensor
