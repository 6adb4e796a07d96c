// SPDX-License-Identifier: BSD-3-Clause
// RecentDecisions: per-thread cache of the latest decisions of an operator's
// unboxed calls. It is the first level of its DecisionCache, with the same
// keys.
#pragma once

#include <dtensor/ops/call_key_impl.h>
#include <dtensor/ops/strategy.h>

#include <array>
#include <memory>

namespace dtensor::detail {

class RecentDecisions {
 public:
  struct Entry {
    ShortKey key;
    /// Decision; null if such calls take the boxed path.
    std::shared_ptr<const Decision> decision;
    /// Result of uses_native_autograd().
    bool stock = false;
  };

  const Entry* find(const ShortKey& key) const {
    const Entry& entry = entries_[key.bucket(kBits)];
    return entry.key == key ? &entry : nullptr;
  }
  void insert(
      const ShortKey& key,
      std::shared_ptr<const Decision> decision,
      bool stock) {
    entries_[key.bucket(kBits)] = {key, std::move(decision), stock};
  }

 private:
  static constexpr size_t kBits = 6;
  std::array<Entry, size_t{1} << kBits> entries_;
};

/// Returns this thread's recent decisions of the operator with that slot
/// number.
RecentDecisions& recent_decisions(size_t slot);

} // namespace dtensor::detail
