// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/decision_cache_impl.h>
#include <dtensor/ops/fast_key_impl.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Of the thread, not of the rank: a decision follows from its key, and whoever
// makes it anew makes the same. The thread looks here in each call, with fewer
// steps than a rank's state would take.
thread_local std::vector<std::unique_ptr<DecisionCache>> caches;
thread_local std::vector<std::unique_ptr<FastTable>> tables;

/// `tables`, looked at without asking whether it has been constructed.
struct Tables {
  const std::unique_ptr<FastTable>* first = nullptr;
  size_t count = 0;
};
constinit thread_local Tables known_tables{};

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

FastTable& fast_table(size_t slot) {
  const Tables known = known_tables;
  if (C10_LIKELY(slot < known.count && known.first[slot] != nullptr)) {
    return *known.first[slot];
  }
  FastTable& table = at_slot(tables, slot);
  known_tables = {tables.data(), tables.size()};
  return table;
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
