// SPDX-License-Identifier: BSD-3-Clause
// InternTable: equal values are one object, kept as long as somebody holds it.
//
// Used for specs and meshes. A lookup compares with the living values of the
// same hash under a short lock and allocates nothing when it finds one. A value
// takes its entry away when it dies, so the table is as large as what is alive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace dtensor::detail {

/// Mixes `value` into the hash `seed`.
inline size_t hash_combine(size_t seed, size_t value) {
  const uint64_t mixed =
      (uint64_t{seed} ^ uint64_t{value}) * 0x9E3779B97F4A7C15ULL;
  return static_cast<size_t>(mixed ^ (mixed >> 32));
}

template <typename T>
class InternTable {
 public:
  /// The living value of this hash for which `equal(value)` holds, else the
  /// new one that `make()`, a std::unique_ptr<T>, returns. No lock is held
  /// while `make` runs.
  template <typename Equal, typename Make>
  std::shared_ptr<const T> get(size_t hash, Equal equal, Make make) {
    if (auto found = find(hash, equal)) {
      return found;
    }
    std::shared_ptr<const T> made(
        make().release(), [this, hash](const T* dying) {
          erase(hash, dying);
          delete dying;
        });
    Shard& shard = shard_of(hash);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    if (auto found = find_locked(shard, hash, equal)) {
      // Another thread was first. `made` dies after the lock is released,
      // since it was declared before.
      return found;
    }
    shard.entries.emplace(hash, Entry{made.get(), made});
    return made;
  }

  /// The living value, or null.
  template <typename Equal>
  std::shared_ptr<const T> find(size_t hash, Equal equal) {
    Shard& shard = shard_of(hash);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    return find_locked(shard, hash, equal);
  }

  size_t size() {
    size_t count = 0;
    for (Shard& shard : shards_) {
      const std::lock_guard<std::mutex> lock(shard.mutex);
      count += shard.entries.size();
    }
    return count;
  }

 private:
  // `value` stays readable as long as its entry is here, even when the last
  // handle is gone already: see erase().
  struct Entry {
    const T* value;
    std::weak_ptr<const T> handle;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_multimap<size_t, Entry> entries;
  };

  Shard& shard_of(size_t hash) {
    return shards_[hash % shards_.size()];
  }

  // Takes a handle of the match alone: dropping the last handle of another
  // value under the lock would come back to erase().
  template <typename Equal>
  static std::shared_ptr<const T>
  find_locked(Shard& shard, size_t hash, Equal& equal) {
    auto [it, end] = shard.entries.equal_range(hash);
    for (; it != end; ++it) {
      if (equal(*it->second.value)) {
        if (auto handle = it->second.handle.lock()) {
          return handle;
        }
      }
    }
    return nullptr;
  }

  void erase(size_t hash, const T* dying) {
    Shard& shard = shard_of(hash);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    auto [it, end] = shard.entries.equal_range(hash);
    for (; it != end; ++it) {
      if (it->second.value == dying) {
        shard.entries.erase(it);
        return;
      }
    }
  }

  std::array<Shard, 16> shards_;
};

} // namespace dtensor::detail
