// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/decision_cache_impl.h>

#include <vector>

namespace dtensor::detail {

DecisionCache& decision_cache(size_t slot) {
  thread_local std::vector<std::unique_ptr<DecisionCache>> caches;
  if (slot >= caches.size()) {
    caches.resize(slot + 1);
  }
  if (caches[slot] == nullptr) {
    caches[slot] = std::make_unique<DecisionCache>();
  }
  return *caches[slot];
}

} // namespace dtensor::detail
