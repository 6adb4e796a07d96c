// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/decision_cache_impl.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Caches per thread instead of per rank. A decision follows from its key, so
// every rank would make the same decision. A thread-local access also takes
// fewer steps in each call than access to a rank's state.
thread_local std::vector<std::unique_ptr<DecisionCache>> caches;
thread_local std::vector<std::unique_ptr<RecentDecisions>> recent;

/// Copy of `recent`'s address and size that every call reads. It is
/// constant-initialized, so a read needs no check for construction, and the TLS
/// model makes the address available without a function call.
struct Known {
  const std::unique_ptr<RecentDecisions>* first = nullptr;
  size_t count = 0;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local Known known_recent{};

// Returns element `slot`, which is made at its first use.
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
