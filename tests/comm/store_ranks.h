// SPDX-License-Identifier: BSD-3-Clause
// Ranks of a StoreWorld.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <thread>
#include <vector>

#include "store_world.h"

namespace dtensor::test {

/// Threads of the test's own, each a rank of a world over the store that `open`
/// gives it.
inline void on_store_ranks(
    int64_t n,
    const std::function<StorePtr()>& open,
    const std::function<void(int64_t rank)>& fn,
    bool checks = true) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      const StorePtr store = open();
      store->setTimeout(std::chrono::seconds(60));
      const auto world = std::make_shared<StoreWorld>(rank, n, store, checks);
      const WorldScope scope(world);
      EXPECT_NO_THROW(fn(rank)) << "rank " << rank;
      world->end();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// The same over a store in memory.
inline void on_store_ranks(
    int64_t n,
    const std::function<void(int64_t rank)>& fn,
    bool checks = true) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_store_ranks(
      n, [&] { return store; }, fn, checks);
}

} // namespace dtensor::test
