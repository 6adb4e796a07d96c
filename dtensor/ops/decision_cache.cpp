// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/decision_cache_impl.h>
#include <dtensor/ops/recent_decisions_impl.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Of the thread, not of the rank: a decision follows from its key, and whoever
// makes it anew makes the same. The thread looks here in each call, with fewer
// steps than a rank's state would take.
thread_local std::vector<std::unique_ptr<DecisionCache>> caches;
thread_local std::vector<std::unique_ptr<RecentDecisions>> recent;

/// `recent`, looked at without asking whether it has been constructed, in the
/// part of the thread's memory that needs no call to find.
struct Known {
  const std::unique_ptr<RecentDecisions>* first = nullptr;
  size_t count = 0;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local Known known_recent{};

// Element `slot`, made when it is first asked for.
template <class T>
T& at_slot(std::vector<std::unique_ptr<T>>& all, size_t slot) {
  if (slot >= all.size()) {
    all.resize(slot + 1);
  }
  auto& mine = all[slot];
  if (mine == nullptr) {
    mine = std::make_unique<T>();
  }
  return *mine;
}

} // namespace

DecisionCache& decision_cache(size_t slot) {
  return at_slot(caches, slot);
}

RecentDecisions& recent_decisions(size_t slot) {
  const Known known = known_recent;
  if (C10_LIKELY(slot < known.count && known.first[slot] != nullptr)) {
    return *known.first[slot];
  }
  RecentDecisions& mine = at_slot(recent, slot);
  known_recent = {recent.data(), recent.size()};
  return mine;
}

DecisionCounts decision_counts() {
  DecisionCounts counts;
  for (const auto& cache : caches) {
    if (cache != nullptr) {
      counts.made += cache->made();
      counts.kept += cache->size();
    }
  }
  return counts;
}

} // namespace dtensor::detail
