// SPDX-License-Identifier: BSD-3-Clause
// C10dGroup: the backend that c10d_group() returns.
#pragma once

#include <dtensor/comm/c10d_group.h>
#include <dtensor/comm/transport_backend.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <utility>

namespace dtensor::detail {

class C10dGroup final : public TransportBackend {
 public:
  C10dGroup(
      GroupMembers members,
      c10::intrusive_ptr<c10d::Backend> backend,
      c10::Device device)
      : TransportBackend(std::move(members), {.device = device}),
        backend_(std::move(backend)),
        name_(backend_->getBackendName()) {}
  ~C10dGroup() override;
  C10dGroup(const C10dGroup&) = delete;
  C10dGroup& operator=(const C10dGroup&) = delete;

  /// True: Gloo's threads and the streams of GPU backends make progress.
  bool progresses_in_background(c10::DeviceType /*device*/) const override {
    return true;
  }
  void abandon(const std::string& why) override;

 protected:
  InFlight begin_all_reduce(const Collective& c) override;
  InFlight begin_all_gather(const Collective& c) override;
  InFlight begin_reduce_scatter(const Collective& c) override;
  InFlight begin_all_to_all(const Collective& c) override;
  InFlight begin_broadcast(const Collective& c) override;
  InFlight begin_send(const Collective& c) override;
  InFlight begin_recv(const Collective& c) override;
  InFlight begin_barrier() override;

  std::string carrier() const override {
    return name_;
  }
  /// Throws ValueError for a tensor on another device than the backend's. A
  /// backend on the CPU may accept other devices.
  void check(const Collective& collective) const override;

 private:
  InFlight begin_even_all_gather(const at::Tensor& input);
  InFlight begin_even_reduce_scatter(const at::Tensor& input, ReduceOp op);

  static std::shared_ptr<Transfer> message(c10::intrusive_ptr<c10d::Work> work);
  std::shared_ptr<Transfer> transfer(c10::intrusive_ptr<c10d::Work> work) const;

  bool is_nccl() const {
    return name_ == "nccl";
  }
  /// Returns true if the backend has this reduction. For a complex dtype,
  /// returns true if the backend has the reduction of the real and imaginary
  /// parts.
  bool reduces(at::ScalarType dtype, ReduceOp op) const;
  bool reduces(const at::Tensor& tensor, ReduceOp op) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
};

} // namespace dtensor::detail
