// SPDX-License-Identifier: BSD-3-Clause
// Decisions of calls: the layouts to which operands are redistributed, and the
// layouts of the results. DecisionCache: bounded cache of the decisions of one
// operator, per thread. Keys are defined in ops/path/call_key_impl.h.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <dtensor/api.h>
#include <dtensor/ops/path/call_key_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/propagate.h>
#include <dtensor/ops/strategy.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Per-thread cache of the latest decisions of an operator's unboxed calls.
/// This cache is the first level of the operator's DecisionCache, with the same
/// keys.
class RecentDecisions {
 public:
  struct Entry {
    ShortKey key;
    /// Decision; null if such calls use the boxed path.
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

using KeyWords = c10::ArrayRef<uint64_t>;

class DecisionCache {
 public:
  using DecisionPtr = std::shared_ptr<const Decision>;
  /// Specs that occur in a key. They live as long as the entry. A spec that is
  /// destroyed and created again would get another id, and the key would no
  /// longer match.
  using Pins = c10::SmallVector<SpecPtr, 3>;
  static constexpr size_t kSets = 256;
  static constexpr size_t kWays = 4;
  static constexpr size_t kCapacity = kSets * kWays;

  const DecisionPtr* find(KeyWords key) const {
    const size_t hash = hash_of(key);
    for (const Entry& entry : sets_[hash % kSets]) {
      if (entry.hash == hash && KeyWords(entry.key) == key) {
        return &entry.decision;
      }
    }
    return nullptr;
  }

  /// Inserts a decision. A full set evicts a random entry: a loop over more
  /// shapes than fit still hits many entries, while evicting the oldest would
  /// hit none.
  const DecisionPtr& insert(KeyWords key, DecisionPtr decision, Pins pins) {
    ++made_;
    const size_t hash = hash_of(key);
    Entry entry{
        hash, {key.begin(), key.end()}, std::move(decision), std::move(pins)};
    auto& set = sets_[hash % kSets];
    if (set.size() < kWays) {
      set.push_back(std::move(entry));
      return set.back().decision;
    }
    dice_ = dice_ * 6364136223846793005ull + 1442695040888963407ull;
    auto& victim = set[(dice_ >> 60) % kWays];
    victim = std::move(entry);
    return victim.decision;
  }

  /// Returns the number of calls of insert().
  size_t made() const {
    return made_;
  }
  size_t size() const {
    size_t count = 0;
    for (const auto& set : sets_) {
      count += set.size();
    }
    return count;
  }

 private:
  static size_t hash_of(KeyWords key) {
    uint64_t h = 0x9E3779B97F4A7C15ull;
    for (const uint64_t word : key) {
      h = (h ^ word) * 0xFF51AFD7ED558CCDull;
      h ^= h >> 32;
    }
    return static_cast<size_t>(h);
  }

  struct Entry {
    size_t hash = 0;
    c10::SmallVector<uint64_t, 24> key;
    DecisionPtr decision;
    Pins pins;
  };
  std::array<std::vector<Entry>, kSets> sets_;
  uint64_t dice_ = 1;
  size_t made_ = 0;
};

/// Returns this thread's cache of the operator with that slot number.
DecisionCache& decision_cache(size_t slot);

/// Numbers of decisions that this thread has made, and of those in its caches.
struct DecisionCounts {
  size_t made = 0;
  size_t kept = 0;
};
DTENSOR_API DecisionCounts decision_counts();

/// Returns the decision for this call, from this rank's cache or made now. The
/// first overload serves callers that have the key (ops/path/call_key_impl.h).
std::shared_ptr<const Decision>
decide(const OpInfo& info, c10::ArrayRef<c10::IValue> args, KeyWords key);
std::shared_ptr<const Decision> decide(
    const OpInfo& info,
    const torch::jit::Stack& stack);

/// Makes the decision of decide() without reading or changing the cache. The
/// first DTensor among `args` provides the mesh. `choices`: see propagate(). If
/// the function throws, `choices` holds the choices made until then.
DTENSOR_INTERNAL_API std::shared_ptr<const Decision> decide_uncached(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    std::vector<Choice>* choices = nullptr);

/// Throws if `self`, which operator `name` would write, is expanded. LibTorch
/// refuses such writes only on ranks with elements.
void check_not_expanded(const std::string& name, const Spec& self);

} // namespace dtensor::detail
