// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/observer.h>

#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
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

struct Scope {
  std::string_view module;
  bool backward = false;
};

Scope& scope() {
  thread_local Scope current;
  return current;
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

void notify_comm_observers(CollectiveEvent event) {
  event.module = scope().module;
  event.backward =
      scope().backward || torch::autograd::get_current_node() != nullptr;
  for (CommObserver* observer : observers()) {
    observer->on_collective(event);
  }
}

std::string_view keep_module_name(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return *names.insert(name).first;
}

ModuleScope::ModuleScope(std::string_view module, bool backward)
    : outer_(scope().module),
      outer_backward_(scope().backward) {
  scope() = {module, backward};
}

ModuleScope::~ModuleScope() {
  scope() = {outer_, outer_backward_};
}

std::string_view ModuleScope::current() {
  return scope().module;
}

} // namespace detail
} // namespace dtensor
