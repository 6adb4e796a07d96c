// SPDX-License-Identifier: BSD-3-Clause
// InternTable: equal values share one object, which lives as long as a handle
// to it.
//
// Specs and meshes are interned. A lookup holds a lock briefly while it
// compares with living values of the same hash, and allocates nothing if it
// finds an equal value. A value's destructor removes its entry, so the table
// never outgrows the living values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>

namespace dtensor::detail {

/// Returns the hash `seed` combined with `value`.
inline size_t hash_combine(size_t seed, size_t value) {
  const uint64_t mixed =
      (uint64_t{seed} ^ uint64_t{value}) * 0x9E3779B97F4A7C15ULL;
  return static_cast<size_t>(mixed ^ (mixed >> 32));
}

/// Returns the hash `seed` combined with the hash of each value.
template <typename List>
size_t hash_each(size_t seed, const List& values) {
  using Value = std::decay_t<decltype(*values.begin())>;
  for (const Value& value : values) {
    seed = hash_combine(seed, std::hash<Value>()(value));
  }
  return seed;
}

template <typename T>
class InternTable {
 public:
  /// Returns the living value of hash `hash` for which `equal(value)` is true.
  /// If there is none, returns a new value from `make()`, which returns a
  /// std::unique_ptr<T>. No lock is held while `make` runs.
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
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto found = find_locked(hash, equal)) {
      // Another thread inserted the value first. `made` was declared before the
      // lock, so it is destroyed after the lock is released.
      return found;
    }
    entries_.emplace(hash, Entry{made.get(), made});
    return made;
  }

  /// Returns the living value, or null.
  template <typename Equal>
  std::shared_ptr<const T> find(size_t hash, Equal equal) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find_locked(hash, equal);
  }

  size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size();
  }

 private:
  // `value` stays readable as long as its entry exists, even after the last
  // handle is released: see erase().
  struct Entry {
    const T* value;
    std::weak_ptr<const T> handle;
  };

  // Locks a weak handle only after a match. If a handle of another value were
  // locked and this handle became the last, its release would call erase() and
  // deadlock.
  template <typename Equal>
  std::shared_ptr<const T> find_locked(size_t hash, Equal& equal) {
    auto [it, end] = entries_.equal_range(hash);
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
    const std::lock_guard<std::mutex> lock(mutex_);
    auto [it, end] = entries_.equal_range(hash);
    for (; it != end; ++it) {
      if (it->second.value == dying) {
        entries_.erase(it);
        return;
      }
    }
  }

  std::mutex mutex_;
  std::unordered_multimap<size_t, Entry> entries_;
};

} // namespace dtensor::detail
