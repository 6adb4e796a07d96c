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
  // NOLINTNEXTLINE(misc-new-delete-overloads): both are here
  static void* operator new(size_t size) {
    Kept& mine = kept;
    if (mine.first == nullptr || size != sizeof(Object)) {
      return ::operator new(size);
    }
    Node* const node = mine.first;
    mine.first = node->next;
    --mine.count;
    return node;
  }
  static void operator delete(void* memory, size_t size) noexcept {
    Kept& mine = kept;
    if (mine.count >= mine.most || size != sizeof(Object)) {
      if (!begin_to_keep(mine, size)) {
        ::operator delete(memory);
        return;
      }
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
      mine.most = 0;
      mine.ended = true;
      while (mine.first != nullptr) {
        Node* const node = mine.first;
        mine.first = node->next;
        ::operator delete(node);
      }
    }
  };

  static bool begin_to_keep(Kept& mine, size_t size) noexcept {
    if (mine.most > 0 || mine.ended || kMostPooled == 0 ||
        size != sizeof(Object)) {
      return false;
    }
    static thread_local GiveBack at_end;
    static_cast<void>(&at_end);
    mine.most = kMostPooled;
    return true;
  }

  static inline constinit thread_local Kept kept{};
};

} // namespace dtensor::detail
