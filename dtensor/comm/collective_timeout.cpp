// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/collective_timeout.h>

#include <dtensor/comm/backend_layer.h>
#include <dtensor/error.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace dtensor {
namespace {

using std::chrono::milliseconds;

// Timeout of the innermost CollectiveTimeout; 0: none.
thread_local milliseconds limit{0};

class TimedBackend final : public BackendLayer {
 public:
  TimedBackend(GroupBackendPtr inner, milliseconds timeout)
      : BackendLayer(std::move(inner)),
        timeout_(timeout) {}

  InFlight submit(Collective&& collective) override {
    const CollectiveTimeout mine(CollectiveTimeout::in_effect(timeout_));
    return BackendLayer::submit(std::move(collective))
        .around([timeout = timeout_](const InFlight::Wait& wait) {
          const CollectiveTimeout its(CollectiveTimeout::in_effect(timeout));
          return wait();
        });
  }

 private:
  milliseconds timeout_;
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

milliseconds CollectiveTimeout::in_effect(milliseconds otherwise) {
  return limit.count() > 0 ? limit : otherwise;
}

GroupBackendPtr detail::timed(GroupBackendPtr backend, milliseconds timeout) {
  check_timeout("new_group", timeout);
  return std::make_shared<TimedBackend>(std::move(backend), timeout);
}

} // namespace dtensor
