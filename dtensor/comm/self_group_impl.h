// SPDX-License-Identifier: BSD-3-Clause
// SelfGroup: the group of one rank, in any world. Group answers its collectives
// itself, so what stands here says only what they come to.
#pragma once

#include <dtensor/comm/group.h>

#include <utility>

namespace dtensor::detail {

class SelfGroup final : public Group {
 public:
  SelfGroup(int64_t rank, std::string label)
      : Group({rank}, 0, std::move(label)) {}

 protected:
  using Tensors = std::vector<at::Tensor>;

  at::Tensor do_all_reduce(const at::Tensor& input, ReduceOp) override {
    return input;
  }
  at::Tensor do_all_gather(const at::Tensor& input, int64_t) override {
    return input;
  }
  at::Tensor do_reduce_scatter(const at::Tensor& input, int64_t, ReduceOp)
      override {
    return input;
  }
  Tensors do_all_to_all(const Tensors& inputs) override {
    return inputs;
  }
  at::Tensor do_shard_dim_alltoall(const at::Tensor& input, int64_t, int64_t)
      override {
    return input;
  }
  at::Tensor do_broadcast(const at::Tensor& input, int64_t) override {
    return input;
  }
  at::Tensor do_scatter(const Tensors& inputs, const at::Tensor&, int64_t)
      override {
    return inputs.front();
  }
  Tensors do_gather(const at::Tensor& input, int64_t) override {
    return {input};
  }
  // There is no peer: Group refuses both.
  void do_send(const at::Tensor&, int64_t, int64_t) override {}
  at::Tensor do_recv(const at::Tensor& like, int64_t, int64_t) override {
    return like;
  }
  void do_barrier() override {}
  std::vector<std::string> do_exchange(const std::string& mine) override {
    return {mine};
  }
  void do_assume(const Spec&) override {}
};

} // namespace dtensor::detail
