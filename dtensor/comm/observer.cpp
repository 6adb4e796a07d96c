// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/observer.h>

#include <algorithm>
#include <array>
#include <vector>

namespace dtensor {
namespace {

constexpr std::array<std::string_view, 10> kNames = {
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "scatter",
    "gather",
    "send",
    "recv",
    "barrier"};

// A rank is a thread, so this is per rank.
std::vector<CommObserver*>& observers() {
  thread_local std::vector<CommObserver*> stack;
  return stack;
}

} // namespace

std::string_view to_string(CollectiveKind kind) {
  return kNames.at(static_cast<size_t>(kind));
}

CommObserverGuard::CommObserverGuard(CommObserver& observer)
    : observer_(&observer) {
  observers().push_back(observer_);
}

CommObserverGuard::~CommObserverGuard() {
  auto& stack = observers();
  const auto last = std::find(stack.rbegin(), stack.rend(), observer_);
  if (last != stack.rend()) {
    stack.erase(std::next(last).base());
  }
}

namespace detail {

bool comm_observed() {
  return !observers().empty();
}

void notify_comm_observers(const CollectiveEvent& event) {
  for (CommObserver* observer : observers()) {
    observer->on_collective(event);
  }
}

} // namespace detail
} // namespace dtensor
