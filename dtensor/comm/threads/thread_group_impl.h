// SPDX-License-Identifier: BSD-3-Clause
// ThreadGroup: a Group whose ranks are threads of this process. Collectives
// read the peers' tensors in place; see channel_impl.h for how they meet.
#pragma once

#include <dtensor/comm/threads/channel_impl.h>
#include <dtensor/comm/group.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

class ThreadGroup final : public Group {
 public:
  ThreadGroup(
      std::vector<int64_t> ranks,
      int64_t rank,
      std::string label,
      std::shared_ptr<ThreadHub> hub);

 protected:
  at::Tensor do_all_reduce(const at::Tensor& input, ReduceOp op) override;
  at::Tensor do_all_gather(const at::Tensor& input, int64_t dim) override;
  at::Tensor
  do_reduce_scatter(const at::Tensor& input, int64_t dim, ReduceOp op) override;
  std::vector<at::Tensor> do_all_to_all(
      const std::vector<at::Tensor>& inputs) override;
  at::Tensor do_shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim) override;
  PendingPtr do_start(AsyncCollective collective) override;
  at::Tensor do_broadcast(const at::Tensor& input, int64_t root) override;
  at::Tensor do_scatter(
      const std::vector<at::Tensor>& inputs,
      const at::Tensor& like,
      int64_t root) override;
  std::vector<at::Tensor> do_gather(const at::Tensor& input, int64_t root)
      override;
  void do_send(const at::Tensor& input, int64_t to, int64_t tag) override;
  at::Tensor do_recv(const at::Tensor& like, int64_t from, int64_t tag)
      override;
  void do_barrier() override;
  std::vector<std::string> do_exchange(const std::string& mine) override;
  void do_assume(const Spec& spec) override;

 private:
  /// Runs `body` between arrival and departure, when all calls agree.
  template <typename Body>
  auto meet(Call& call, const Body& body);
  /// Notes where an error of this rank came from.
  template <typename Body>
  auto in_place(std::string_view name, const Body& body);

  /// The result of a collective over small tensors: `combine` computes it from
  /// what the members published, this one the data of `given`. Nothing if the
  /// members do not all call it.
  template <typename Combine>
  std::optional<at::Tensor> meet_small(
      const Signature& signature,
      const at::Tensor* given,
      at::IntArrayRef sizes,
      const Combine& combine);

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Channel> channel_;
};

} // namespace dtensor::detail
