// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/observer.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/torch_nodes_impl.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

namespace dtensor {
namespace {

struct Scope {
  std::string_view module;
  bool backward = false;
};

detail::RankLocal<std::vector<CommObserver*>> observers;
detail::RankLocal<int64_t> pauses;
detail::RankLocal<Scope> scope;

} // namespace

CommObserverGuard::CommObserverGuard(CommObserver& observer)
    : observer_(&observer) {
  observers.get().push_back(observer_);
}

CommObserverGuard::~CommObserverGuard() {
  auto& stack = observers.get();
  const auto last = std::find(stack.rbegin(), stack.rend(), observer_);
  if (last != stack.rend()) {
    stack.erase(std::next(last).base());
  }
}

namespace detail {

bool comm_observed() {
  return !observers.get().empty() && pauses.get() == 0;
}

CommObserversPaused::CommObserversPaused() {
  ++pauses.get();
}

CommObserversPaused::~CommObserversPaused() {
  --pauses.get();
}

void notify_comm_observers(CollectiveEvent event) {
  const Scope& current = scope.get();
  event.module = current.module;
  event.backward =
      current.backward || torch::autograd::get_current_node() != nullptr;
  for (CommObserver* observer : observers.get()) {
    observer->on_collective(event);
  }
}

std::string_view keep_module_name(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return *names.insert(name).first;
}

ModuleScope::ModuleScope(std::string_view module, bool backward) {
  Scope& current = scope.get();
  outer_ = current.module;
  outer_backward_ = current.backward;
  current = {module, backward};
}

ModuleScope::~ModuleScope() {
  scope.get() = {outer_, outer_backward_};
}

std::string_view ModuleScope::current() {
  return scope.get().module;
}

} // namespace detail
} // namespace dtensor
