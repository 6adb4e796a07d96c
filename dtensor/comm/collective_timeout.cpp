// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/collective_timeout.h>

#include <dtensor/comm/backend_decorator_impl.h>
#include <dtensor/error.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace dtensor {
namespace {

using std::chrono::milliseconds;

// Timeout of the innermost CollectiveTimeout; 0: none.
thread_local milliseconds limit{0};

class TimedPending final : public Pending {
 public:
  TimedPending(PendingPtr inner, milliseconds timeout)
      : inner_(std::move(inner)),
        timeout_(timeout) {}
  at::Tensor wait() override {
    const CollectiveTimeout mine(detail::timeout_or(timeout_));
    return inner_->wait();
  }

 private:
  PendingPtr inner_;
  milliseconds timeout_;
};

class TimedBackend final : public detail::BackendDecorator {
 public:
  TimedBackend(GroupBackendPtr inner, milliseconds timeout)
      : BackendDecorator(std::move(inner)),
        timeout_(timeout) {}

 protected:
  void enter(const Entered& /*entered*/, MakeCall /*call*/) override {
    mine_.emplace(detail::timeout_or(timeout_));
  }
  void leave(const Entered& /*entered*/) noexcept override {
    mine_.reset();
  }
  PendingPtr started(const Entered& /*entered*/, PendingPtr pending) override {
    return std::make_shared<TimedPending>(std::move(pending), timeout_);
  }

 private:
  milliseconds timeout_;
  std::optional<CollectiveTimeout> mine_;
};

void check_timeout(const char* where, milliseconds timeout) {
  DTENSOR_CHECK_VALUE(
      timeout.count() > 0,
      "[{}] the timeout must be positive: {} ms. Leave it out to use the "
      "world's timeout.",
      where,
      timeout.count());
}

} // namespace

CollectiveTimeout::CollectiveTimeout(milliseconds timeout) : outer_(limit) {
  check_timeout("CollectiveTimeout", timeout);
  limit = std::min(timeout, detail::kLongestTimeout);
}

CollectiveTimeout::~CollectiveTimeout() {
  limit = outer_;
}

milliseconds detail::timeout_or(milliseconds otherwise) {
  return limit.count() > 0 ? limit : otherwise;
}

GroupBackendPtr detail::timed(GroupBackendPtr backend, milliseconds timeout) {
  check_timeout("new_group", timeout);
  return std::make_shared<TimedBackend>(std::move(backend), timeout);
}

} // namespace dtensor
