// SPDX-License-Identifier: BSD-3-Clause
// Pooled: a per-thread free list for objects that every operator allocates.
//
//   struct Meta final : Base, Pooled<Meta> { ... };
//
// A thread keeps a bounded number of freed objects for its next allocations, so
// both operations only change a list head. An object may be freed by another
// thread than the allocating thread. A thread's list is freed when the thread
// ends.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace dtensor::detail {

// The sanitizers must see every allocation and deallocation.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr size_t kMostPooled = 0;
#else
inline constexpr size_t kMostPooled = 64;
#endif

template <class Object>
class Pooled {
 public:
  static void* operator new(size_t size) {
    static_assert(std::is_final_v<Object>); // so all objects have this size
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
  // Trivially constructible, so access needs no initialization check. `most` is
  // 0 until the thread keeps its first object, and again after the thread
  // ended.
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

  // Returns false if the thread may not keep more objects.
  static bool begin_to_keep(Kept& mine) noexcept {
    if (mine.most > 0 || mine.ended || kMostPooled == 0) {
      return false;
    }
    static thread_local GiveBack at_end;
    static_cast<void>(&at_end);
    mine.most = kMostPooled;
    return true;
  }

  // The initial-exec TLS model: the address is found without a function call.
  [[gnu::tls_model(
      "initial-exec")]] static inline constinit thread_local Kept kept{};
};

} // namespace dtensor::detail
