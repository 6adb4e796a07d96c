// SPDX-License-Identifier: BSD-3-Clause
// RankLocal: what is a rank's own, found by every thread that works for it.
//
//   RankLocal<Stream> stream;   // in namespace scope
//   ++stream.get().position;    // of this rank
//
// A rank is mostly one thread, but not always: LibTorch runs backward nodes of
// a device in threads of its own, and a program may call backward() in another
// thread. Both find the state of the rank that made the node (comm/world.h).
// Each thread outside of ranks has a state of its own.
//
// Of the thread, and in thread_locals, is besides which rank it is: what only
// saves time or memory (free lists, decisions that follow from their key
// alone); what follows its calls (scopes, operators that run, how long it
// waits); and the tape of its DeferredInit scopes. tools/check_layers.py lists
// them. A T is not made thread-safe by this: a rank does one thing at a time.
//
// Like c10d's RankLocal, with the state in the world instead of a map.
#pragma once

#include <c10/macros/Macros.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace dtensor {
class World;
}

namespace dtensor::detail {

/// The values of all RankLocals of one rank, by slot number.
class RankState {
 public:
  static constexpr size_t kSlots = 32;
  using Make = void* (*)();
  using Drop = void (*)(void*);

  RankState() = default;
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;
  ~RankState() {
    clear();
  }

  /// Null if there is none yet. Never any in slot 0.
  void* find(size_t slot) const {
    return values_[slot].load(std::memory_order_acquire);
  }
  /// The same, made if need be.
  void* get(size_t slot, Make make, Drop drop);
  /// Drops all values.
  void clear();

 private:
  std::mutex mutex_;
  std::array<std::atomic<void*>, kSlots> values_{};
  std::array<Drop, kSlots> drops_{};
};

/// The rank that a thread is: the process's world and null for none.
struct ThisThread {
  World* world;
  RankState* state;
};
// Read in each collective and wherever a mesh is checked: in the part of the
// thread's memory that needs no call to find.
[[gnu::tls_model(
    "initial-exec")]] extern constinit thread_local ThisThread this_thread;

/// The value in `slot` (0: none was given to the RankLocal yet) of the rank
/// that this thread works for.
void* find_rank_local(
    std::atomic<size_t>& slot,
    RankState::Make make,
    RankState::Drop drop);

template <class T>
class RankLocal {
 public:
  T& get() {
    const RankState* const state = this_thread.state;
    void* value = C10_LIKELY(state != nullptr)
        ? state->find(slot_.load(std::memory_order_relaxed))
        : nullptr;
    if (C10_UNLIKELY(value == nullptr)) {
      value = find_rank_local(slot_, make, drop);
    }
    return *static_cast<T*>(value);
  }

 private:
  static void* make() {
    return new T();
  }
  static void drop(void* value) {
    delete static_cast<T*>(value);
  }

  std::atomic<size_t> slot_{0};
};

} // namespace dtensor::detail
