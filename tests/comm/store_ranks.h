// SPDX-License-Identifier: BSD-3-Clause
// on_store_ranks(): runs a function on the ranks of a StoreWorld.
// on_ranks_of(): runs a function on the ranks of any other world.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <thread>
#include <vector>

#include "store_world.h"

namespace dtensor::test {

/// Runs `fn` in threads of the test, each of which is a rank of the world that
/// `make` returns.
inline void on_ranks_of(
    int64_t n,
    const std::function<std::shared_ptr<World>(int64_t rank)>& make,
    const std::function<void(int64_t rank)>& fn) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = make(rank);
      const WorldScope scope(world);
      EXPECT_NO_THROW(fn(rank)) << "rank " << rank;
      world->end();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// Runs `fn` on the ranks of a world over the store that `open` returns.
inline void on_store_ranks(
    int64_t n,
    const std::function<StorePtr()>& open,
    const std::function<void(int64_t rank)>& fn,
    bool checks = true) {
  on_ranks_of(
      n,
      [&](int64_t rank) {
        const StorePtr store = open();
        store->setTimeout(std::chrono::seconds(60));
        return std::make_shared<StoreWorld>(rank, n, store, checks);
      },
      fn);
}

/// Runs `fn` on the ranks of a StoreWorld over a store in memory.
inline void on_store_ranks(
    int64_t n,
    const std::function<void(int64_t rank)>& fn,
    bool checks = true) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_store_ranks(
      n, [&] { return store; }, fn, checks);
}

} // namespace dtensor::test
