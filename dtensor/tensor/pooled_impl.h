// SPDX-License-Identifier: BSD-3-Clause
// Pooled: memory for objects of which every operator makes and drops one.
//
//   struct Meta final : Base, Pooled<Meta> { ... };
//
// What a thread drops it keeps for the next one that it makes, up to a few: no
// more than a list's head changes. An object may be dropped by another thread
// than made it. A thread that ends gives back what it kept.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace dtensor::detail {

// The sanitizers must see every object come and go.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr size_t kMostPooled = 0;
#else
inline constexpr size_t kMostPooled = 64;
#endif

template <class Object>
class Pooled {
 public:
  static void* operator new(size_t size) {
    static_assert(std::is_final_v<Object>); // so all are of this size
    Kept& mine = kept;
    if (mine.first == nullptr) {
      return ::operator new(size);
    }
    Node* const node = mine.first;
    mine.first = node->next;
    --mine.count;
    return node;
  }
  static void operator delete(void* memory) noexcept {
    Kept& mine = kept;
    if (mine.count == mine.most && !begin_to_keep(mine)) {
      ::operator delete(memory);
      return;
    }
    mine.first = ::new (memory) Node{mine.first};
    ++mine.count;
  }

 private:
  struct Node {
    Node* next;
  };
  // Trivial, so that looking at it is all that it takes. `most` is 0 until the
  // thread keeps its first, and again once the thread has ended.
  struct Kept {
    Node* first = nullptr;
    size_t count = 0;
    size_t most = 0;
    bool ended = false;
  };
  struct GiveBack {
    ~GiveBack() {
      Kept& mine = kept;
      mine.ended = true;
      mine.count = mine.most = 0;
      while (mine.first != nullptr) {
        Node* const node = mine.first;
        mine.first = node->next;
        ::operator delete(node);
      }
    }
  };

  // False where no more are to be kept.
  static bool begin_to_keep(Kept& mine) noexcept {
    if (mine.most > 0 || mine.ended || kMostPooled == 0) {
      return false;
    }
    static thread_local GiveBack at_end;
    static_cast<void>(&at_end);
    mine.most = kMostPooled;
    return true;
  }

  // In the part of the thread's memory that needs no call to find.
  [[gnu::tls_model(
      "initial-exec")]] static inline constinit thread_local Kept kept{};
};

} // namespace dtensor::detail
