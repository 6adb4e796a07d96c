// SPDX-License-Identifier: BSD-3-Clause
// BackendDecorator: a backend that does what another one does, with something
// before and after each call.
#pragma once

#include <dtensor/comm/call_impl.h>
#include <dtensor/comm/group_backend.h>

#include <utility>

namespace dtensor::detail {

class DTENSOR_API BackendDecorator : public GroupBackend {
 public:
  explicit BackendDecorator(GroupBackendPtr inner)
      : GroupBackend(inner->members(), inner->needs()),
        inner_(std::move(inner)) {}

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override;
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override;
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override;
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
  std::vector<std::string> exchange(const std::string& mine) override;
  PendingPtr start(AsyncCollective collective) override;
  void assume(const Spec& spec) override;

 protected:
  GroupBackend& inner() const {
    return *inner_;
  }
  /// Around each call. Its tensors are those that it was given; `call` may be
  /// added to.
  virtual void enter(Call& call) = 0;
  virtual void leave(const Call& call) noexcept = 0;

 private:
  template <typename Body>
  auto around(Call call, const Body& body);

  GroupBackendPtr inner_;
};

} // namespace dtensor::detail
