// SPDX-License-Identifier: BSD-3-Clause
// ThreadBackend: a group of ranks that are threads of this process. Collectives
// read the peers' tensors in place; see channel_impl.h for the protocol.
//
// Each collective has a file of its own (all_reduce.cpp, ...), with its fast
// path for small tensors and its general path.
#pragma once

#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/threads/channel_impl.h>
#include <dtensor/layout/shard_math.h>

#include <optional>

namespace dtensor::detail {

class ThreadBackend final : public GroupBackend {
 public:
  ThreadBackend(GroupMembers members, std::shared_ptr<ThreadHub> hub);

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override;
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    return gather_along(input, 0, counts);
  }
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    return reduce_scatter_along(input, 0, counts, op);
  }
  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override;
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override;
  void send(const at::Tensor& input, int64_t to, int64_t tag) override;
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override;

  at::Tensor gather_along(const at::Tensor& input, int64_t dim, SizesRef sizes)
      override;
  at::Tensor reduce_scatter_along(
      const at::Tensor& input,
      int64_t dim,
      SizesRef sizes,
      ReduceOp op) override;
  at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes) override;
  Tensors exchange_parts(const Tensors& inputs, Shapes shapes) override;
  at::Tensor
  scatter(const Tensors& inputs, const at::Tensor& like, int64_t root) override;
  Tensors gather(const at::Tensor& input, Shapes shapes, int64_t root) override;
  void barrier() override;
  std::vector<std::string> all_gather_strings(const std::string& mine) override;
  PendingPtr start(AsyncCollective collective) override;
  void assume(const Spec& spec) override;

 private:
  /// Runs `body` between arrival and departure, once all calls agree.
  template <typename Body>
  auto meet(Call& call, const Body& body);
  /// Runs `body` and records `name` as the place of an error that it throws.
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

  std::optional<Tensors> exchange_small_parts(
      const Tensors& inputs,
      Shapes shapes);

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Channel> channel_;
};

} // namespace dtensor::detail
