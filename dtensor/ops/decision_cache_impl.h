// SPDX-License-Identifier: BSD-3-Clause
// DecisionCache: what one operator decided before, per rank, bounded.
//
// A key is a list of words: spec ids for DTensors and the values of the other
// arguments that matter. Ids are never reused, so a key cannot mean another
// spec later.
#pragma once

#include <c10/util/SmallVector.h>
#include <dtensor/ops/strategy.h>

#include <memory>
#include <unordered_map>

namespace dtensor::detail {

using CacheKey = c10::SmallVector<uint64_t, 24>;

struct CacheKeyHash {
  size_t operator()(const CacheKey& key) const {
    uint64_t h = 0x9E3779B97F4A7C15ull;
    for (const uint64_t word : key) {
      h = (h ^ word) * 0xFF51AFD7ED558CCDull;
      h ^= h >> 32;
    }
    return static_cast<size_t>(h);
  }
};

class DecisionCache {
 public:
  using DecisionPtr = std::shared_ptr<const Decision>;
  static constexpr size_t kCapacity = 1024;

  const DecisionPtr* find(const CacheKey& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second;
  }

  // A full cache starts anew: shapes that keep changing do not let it grow,
  // and those still in use come back at the cost of one decision each.
  const DecisionPtr& insert(const CacheKey& key, DecisionPtr decision) {
    if (entries_.size() >= kCapacity) {
      entries_.clear();
    }
    return entries_.insert_or_assign(key, std::move(decision)).first->second;
  }

  size_t size() const {
    return entries_.size();
  }

 private:
  std::unordered_map<CacheKey, DecisionPtr, CacheKeyHash> entries_;
};

/// This rank's cache of the operator with that slot number.
DecisionCache& decision_cache(size_t slot);

} // namespace dtensor::detail
