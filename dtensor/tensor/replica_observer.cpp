// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/replica_observer_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {
namespace {

RankLocal<std::vector<ReplicaObserver*>> observers;

} // namespace

ReplicaObserverGuard::ReplicaObserverGuard(ReplicaObserver& observer)
    : observer_(&observer) {
  observers.get().push_back(observer_);
  ++live_replica_observers;
}

ReplicaObserverGuard::~ReplicaObserverGuard() {
  --live_replica_observers;
  auto& stack = observers.get();
  const auto last = std::find(stack.rbegin(), stack.rend(), observer_);
  if (last != stack.rend()) {
    stack.erase(std::next(last).base());
  }
}

void notify_replica_observers(const ReplicaEvent& event) {
  for (auto* observer : observers.get()) {
    observer->on_replicas(event);
  }
}

void notify_replicas(ReplicaKind kind, const at::Tensor& dtensor) {
  const auto spec = spec_of(dtensor);
  notify_replica_observers(
      {kind, dtensor, spec->mesh(), spec->placements(), -1});
}

} // namespace dtensor::detail
