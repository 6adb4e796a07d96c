// SPDX-License-Identifier: BSD-3-Clause
// BackendDecorator: base of backends that wrap another backend with work before
// and after each call.
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/call_impl.h>
#include <dtensor/comm/group_backend.h>

#include <string>
#include <string_view>
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
  std::vector<std::string> all_gather_strings(const std::string& mine) override;
  PendingPtr start(AsyncCollective collective) override;
  void assume(const Spec& spec) override;
  bool progresses_in_background(c10::DeviceType device) const override {
    return inner_->progresses_in_background(device);
  }
  void abandon(const std::string& why) override {
    inner_->abandon(why);
  }

 protected:
  GroupBackend& inner() const {
    return *inner_;
  }

  /// A call that is being entered.
  struct Entered {
    std::string_view name;
    int64_t bytes = 0; // of this rank's input
  };
  using MakeCall = c10::function_ref<Call()>;

  /// Runs before each call. `call` builds its full description, on demand.
  virtual void enter(const Entered& entered, MakeCall call) = 0;
  /// Runs after each call, even if the call threw.
  virtual void leave(const Entered& entered) noexcept = 0;
  /// Runs in the handler if the call threw; may throw another error instead.
  virtual void failed(const Entered& entered);
  /// Returns the Pending to hand out instead of `pending`, the result of
  /// start().
  virtual PendingPtr started(const Entered& entered, PendingPtr pending);

 private:
  template <typename Body>
  auto around(const Entered& entered, MakeCall call, const Body& body);

  GroupBackendPtr inner_;
};

} // namespace dtensor::detail
