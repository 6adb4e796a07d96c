// SPDX-License-Identifier: BSD-3-Clause
// ThreadBackend: a group of ranks that are threads of this process. Collectives
// read the peers' tensors in place; see channel_impl.h for the protocol.
//
// Each collective has a fast path for small tensors and a general path.
// Families of collectives have their own source files (reductions.cpp,
// exchanges.cpp).
#pragma once

#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/threads/channel_impl.h>
#include <dtensor/layout/shard_math.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

class ThreadBackend final : public GroupBackend,
                            public std::enable_shared_from_this<ThreadBackend> {
 public:
  ThreadBackend(GroupMembers members, std::shared_ptr<ThreadHub> hub);

  InFlight submit(Collective&& c) override;
  void assume(const Spec& spec) override;
  void set_operator_errors(int64_t total, const std::string& last) override;

 private:
  using Tensors = std::vector<at::Tensor>;

  // One function per collective. They may move from the inputs.
  at::Tensor all_reduce(Collective& c);
  at::Tensor all_gather(Collective& c);
  at::Tensor reduce_scatter(Collective& c);
  at::Tensor shard_dim_alltoall(Collective& c);
  Tensors all_to_all(Collective& c);
  at::Tensor broadcast(Collective& c);
  at::Tensor scatter(Collective& c);
  Tensors gather(Collective& c);
  void send(const Collective& c);
  at::Tensor recv(const Collective& c);
  void barrier();
  Tensors all_gather_strings(Collective& c);
  /// Starts an asynchronous collective.
  InFlight start(Collective&& c);
  /// Waits for the result of a collective that the rank of `owner` started.
  at::Tensor finish(const World& owner, AsyncMeeting& meeting);
  at::Tensor result_of(AsyncMeeting& meeting);
  void keep_contradiction(const AsyncMeeting& meeting);

  /// Runs `body` between arrival and departure, once all calls agree.
  template <typename Body>
  auto meet(Call& call, const Body& body);
  /// Publishes contiguous inputs, and runs `body(call)` as meet() does.
  template <typename Body>
  auto meet_plain(Collective& c, const Body& body);
  /// Runs `body`, and records `name` as the place of any error that `body`
  /// throws.
  template <typename Body>
  auto noting_place(std::string_view name, const Body& body);

  /// Runs a collective over small tensors. Posts the data of `given`; `make`
  /// allocates the result, and `combine` computes it from the published data of
  /// all members. Returns nullopt unless all members make the same small call.
  template <typename Make, typename Combine>
  auto try_fast_path(
      const Signature& signature,
      c10::ArrayRef<at::Tensor> given,
      const Make& make,
      const Combine& combine) -> std::optional<decltype(make())>;
  /// Overload for a result that is a tensor of these sizes.
  template <typename Combine>
  std::optional<at::Tensor> try_fast_path(
      const Signature& signature,
      c10::ArrayRef<at::Tensor> given,
      at::IntArrayRef sizes,
      const Combine& combine);

  std::optional<Tensors> exchange_small_parts(const Collective& c);

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Channel> channel_;
};

} // namespace dtensor::detail
