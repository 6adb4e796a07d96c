// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/in_flight.h>

#include <dtensor/comm/group/backend_call_impl.h>

namespace dtensor {
namespace {

class PendingCollective final : public Pending {
 public:
  explicit PendingCollective(InFlight collective)
      : collective_(std::move(collective)) {}

  // The wait completes the call after its BackendCall has ended.
  at::Tensor wait() override {
    const detail::PlainTensors guard;
    return collective_.wait().tensor;
  }

 private:
  InFlight collective_;
};

} // namespace

InFlight::InFlight(std::shared_ptr<Transfer> transfer, Wait finish)
    : rest_(std::make_unique<Rest>()) {
  rest_->transfer = transfer;
  rest_->wait = [moved = std::move(transfer), finish = std::move(finish)] {
    if (moved != nullptr) {
      moved->wait();
    }
    return finish();
  };
}

void InFlight::complete() {
  result_ = rest_->wait();
  rest_ = nullptr;
}

InFlight InFlight::into(const at::Tensor& out) && {
  return out.defined() ? std::move(*this).then([out](const at::Tensor& result) {
    return out.copy_(result);
  })
                       : std::move(*this);
}

InFlight InFlight::around(
    std::function<CollectiveResult(const Wait&)> waiting) && {
  if (rest_ != nullptr) {
    rest_->wait = [inner = std::move(rest_->wait),
                   waiting = std::move(waiting)] { return waiting(inner); };
  }
  return std::move(*this);
}

PendingPtr pending(InFlight collective) {
  return std::make_shared<PendingCollective>(std::move(collective));
}

PendingPtr ready(at::Tensor result) {
  return pending(std::move(result));
}

} // namespace dtensor
