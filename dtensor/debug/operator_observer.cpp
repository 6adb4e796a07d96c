// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/operator_observer_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

namespace dtensor::detail {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;
using InputsMember = Inputs at::RecordFunction::*;

// Gives access to a private member, which only an explicit instantiation may
// name.
template <InputsMember member>
struct InputsReader {
  friend InputsMember inputs_member() {
    return member;
  }
};
InputsMember inputs_member();
template struct InputsReader<&at::RecordFunction::inputs_>;

// The observers of one kind, and their callback.
struct Listeners {
  std::vector<OperatorObserver*> observers;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

RankLocal<std::array<Listeners, 3>> listeners;

Listeners& listeners_to(ObservedEvents heard) {
  return listeners.get()[static_cast<size_t>(heard)];
}

// Marks ranges that were reported at their begin. Only for these ranges is the
// end reported.
struct ReportedBegin final : at::ObserverContext {};

// True for operator names. The engine and some kernels open ranges with names
// such as "detach" and "autograd::engine::evaluate_function: MmBackward0".
bool is_operator(std::string_view name) {
  return name.find("::") != name.npos && !name.starts_with("autograd::");
}

template <ObservedEvents heard>
std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  if (heard != ObservedEvents::kRanges && !is_operator(call.name())) {
    return nullptr;
  }
  for (auto* observer : listeners_to(heard).observers) {
    observer->on_begin(call);
  }
  return std::make_unique<ReportedBegin>();
}

template <ObservedEvents heard>
void end(const at::RecordFunction& call, at::ObserverContext* context) {
  if (context == nullptr) {
    return;
  }
  for (auto* observer : listeners_to(heard).observers) {
    observer->on_end(call);
  }
}

at::RecordFunctionCallback callback_for(ObservedEvents heard) {
  using at::RecordFunctionCallback;
  using at::RecordScope;
  switch (heard) {
    case ObservedEvents::kOperators:
      return RecordFunctionCallback(
                 begin<ObservedEvents::kOperators>,
                 end<ObservedEvents::kOperators>)
          .needsInputs(true)
          .scopes({RecordScope::FUNCTION});
    case ObservedEvents::kResults:
      return RecordFunctionCallback(
                 begin<ObservedEvents::kResults>, end<ObservedEvents::kResults>)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({RecordScope::FUNCTION});
    default:
      return RecordFunctionCallback(
                 begin<ObservedEvents::kRanges>, end<ObservedEvents::kRanges>)
          .scopes({RecordScope::BACKWARD_FUNCTION, RecordScope::USER_SCOPE});
  }
}

} // namespace

Inputs inputs_of(const at::RecordFunction& call) {
  return call.*inputs_member();
}

OperatorObserverGuard::OperatorObserverGuard(
    OperatorObserver& observer,
    ObservedEvents heard)
    : observer_(&observer),
      heard_(heard) {
  auto& all = listeners_to(heard);
  if (all.observers.empty()) {
    all.callback = at::addThreadLocalCallback(callback_for(heard));
  }
  all.observers.push_back(observer_);
}

OperatorObserverGuard::~OperatorObserverGuard() {
  auto& all = listeners_to(heard_);
  const auto last =
      std::find(all.observers.rbegin(), all.observers.rend(), observer_);
  if (last != all.observers.rend()) {
    all.observers.erase(std::next(last).base());
  }
  if (all.observers.empty()) {
    at::removeCallback(all.callback);
  }
}

} // namespace dtensor::detail
