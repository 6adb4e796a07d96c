// SPDX-License-Identifier: BSD-3-Clause
// Memory of each rank's tensors: an allocator that wraps LibTorch's CPU
// allocator and counts bytes in the account of the allocating thread.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

/// Bytes held now, and their maximum.
struct MemoryAccount {
  void add(int64_t bytes) {
    const int64_t sum = now += bytes;
    int64_t before = peak;
    while (sum > before && !peak.compare_exchange_weak(before, sum)) {
    }
  }

  std::atomic<int64_t> now{0};
  std::atomic<int64_t> peak{0};
};

/// Account of this thread's allocations, until they are freed by any thread.
inline thread_local std::shared_ptr<MemoryAccount> memory_account;

class CountingAllocator final : public c10::Allocator {
 public:
  /// Replaces LibTorch's allocator from now on.
  static void install() {
    c10::SetCPUAllocator(&the_one());
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* const data = inner_->raw_allocate(bytes);
    if (data != nullptr && memory_account != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex_);
      blocks_[data] = {static_cast<int64_t>(bytes), memory_account};
      memory_account->add(static_cast<int64_t>(bytes));
    }
    return {data, data, &drop, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &drop;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  struct Block {
    int64_t bytes;
    std::shared_ptr<MemoryAccount> account;
  };

  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  // Never destroyed, because tensors may outlive all static objects.
  static CountingAllocator& the_one() {
    static auto* const allocator =
        new CountingAllocator(c10::GetCPUAllocator());
    return *allocator;
  }

  static void drop(void* data) {
    the_one().free(data);
  }

  void free(void* data) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = blocks_.find(data); found != blocks_.end()) {
        found->second.account->add(-found->second.bytes);
        blocks_.erase(found);
      }
    }
    inner_->raw_deallocate(data);
  }

  c10::Allocator* inner_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
};
