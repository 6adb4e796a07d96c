// SPDX-License-Identifier: BSD-3-Clause
// RankLocal: per-rank state, which every thread that works for the rank shares.
//
//   RankLocal<Stream> stream;   // in namespace scope
//   ++stream.get().position;    // of this rank
//
// A rank is usually one thread, but not always: LibTorch runs a device's
// backward nodes in threads of its own, and a program may call backward() in
// another thread. Both use the state of the rank that made the node
// (comm/world.h). Each thread outside of ranks has a state of its own.
//
// Some state is thread_local instead: the thread's rank; state that only saves
// time or memory (free lists, decisions determined by their key); state that
// follows the thread's calls (scopes, running operators, timeouts); and the
// tape of its DeferredInit scopes. tools/check_layers.py lists this state.
// RankLocal does not make a T thread-safe: a rank does one thing at a time.
//
// Corresponds to c10d's RankLocal, with the state in the World instead of a
// map.
#pragma once

#include <dtensor/api.h>

#include <c10/macros/Macros.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace dtensor {
class World;
}

namespace dtensor::detail {

/// Values of all RankLocals of one rank, by slot number.
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

  /// Returns the value, or null if it does not exist yet. Slot 0 is always
  /// empty.
  void* find(size_t slot) const {
    return values_[slot].load(std::memory_order_acquire);
  }
  /// Returns the value, made on first use.
  void* get(size_t slot, Make make, Drop drop);
  /// Destroys all values.
  void clear();

 private:
  std::mutex mutex_;
  std::array<std::atomic<void*>, kSlots> values_{};
  std::array<Drop, kSlots> drops_{};
};

/// Rank of a thread. For a thread that is not a rank: the process's world and a
/// null state.
struct ThisThread {
  World* world;
  RankState* state;
};
// This thread's rank. Read in each collective and mesh check, hence in static
// TLS: access needs no function call.
extern DTENSOR_INTERNAL_API constinit thread_local ThisThread this_thread
    [[gnu::tls_model("initial-exec")]];

/// Returns the value in `slot` (0: the RankLocal has no slot yet) for the rank
/// that this thread works for.
DTENSOR_INTERNAL_API void* find_rank_local(
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
