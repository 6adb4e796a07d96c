// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/decision_cache_impl.h>
#include <dtensor/ops/fast_key_impl.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Element `slot`, made when it is first asked for.
template <class T>
T& at_slot(std::vector<std::unique_ptr<T>>& all, size_t slot) {
  if (C10_UNLIKELY(slot >= all.size())) {
    all.resize(slot + 1);
  }
  auto& mine = all[slot];
  if (C10_UNLIKELY(mine == nullptr)) {
    mine = std::make_unique<T>();
  }
  return *mine;
}

thread_local std::vector<std::unique_ptr<DecisionCache>> caches;
thread_local std::vector<std::unique_ptr<FastTable>> tables;

} // namespace

DecisionCache& decision_cache(size_t slot) {
  return at_slot(caches, slot);
}

FastTable& fast_table(size_t slot) {
  return at_slot(tables, slot);
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
