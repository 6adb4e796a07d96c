// SPDX-License-Identifier: BSD-3-Clause
// DecisionCache: what one operator decided before, per rank, bounded.
//
// A key is a list of words: spec ids for DTensors and the values of the other
// arguments that matter. Ids are never reused, so a key cannot mean another
// spec later.
#pragma once

#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <dtensor/api.h>
#include <dtensor/ops/strategy.h>

#include <memory>

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
  using hash_policy = ska::power_of_two_hash_policy;
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
  ska::flat_hash_map<CacheKey, DecisionPtr, CacheKeyHash> entries_;
};

class FastTable; // ops/fast_key_impl.h

/// This rank's cache of the operator with that slot number, and what its
/// unboxed kernel looks up first.
DecisionCache& decision_cache(size_t slot);
FastTable& fast_table(size_t slot);

/// Forgets all that this rank decided. Not for use inside a call.
DTENSOR_API void clear_decisions();

} // namespace dtensor::detail
