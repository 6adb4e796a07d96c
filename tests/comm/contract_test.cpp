// SPDX-License-Identifier: BSD-3-Clause
// The contract of groups on the backends whose ranks can be threads of a test.
#include <dtensor/comm/c10d_backend.h>
#include <dtensor/comm/c10d_group.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/ranks.h>
#include <tests/comm/contract/suite.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "backend_world.h"
#include "store_ranks.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;
using Check = std::function<void(Group&)>;

// Returns entries for several numbers of ranks; run(n, check) runs a check.
template <typename Run>
std::vector<ContractRanks> of_sizes(
    const std::vector<int64_t>& sizes,
    const Run& run) {
  std::vector<ContractRanks> all;
  for (const int64_t n : sizes) {
    all.push_back(
        {std::to_string(n), [=](const Check& check) { run(n, check); }});
  }
  return all;
}

void on_threads(int64_t n, const Check& check) {
  run_ranks(n, [&] { check(*world()); });
}

// A group of three of five ranks, not in the order of their numbers.
void on_some_threads(const Check& check) {
  run_ranks(5, [&](int64_t rank) {
    if (rank == 0 || rank > 2) {
      check(*new_group({3, 0, 4}, "some"));
    }
  });
}

// Returns a function that runs checks on ranks with this backend. The ranks are
// threads of the test.
auto on_made_by(const MakeBackend& make) {
  return [=](int64_t n, const Check& check) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    on_ranks_of(
        n,
        [&](int64_t rank) {
          return std::make_shared<BackendWorld>(rank, n, store, make);
        },
        [&](int64_t) { check(*world()); });
  };
}

auto on_store(bool checks) {
  return [=](int64_t n, const Check& check) {
    on_store_ranks(
        n, [&](int64_t) { check(*world()); }, checks);
  };
}

// Both adapters for c10d, over ranks that are threads.
void on_c10d(int64_t n, const Check& check) {
  run_ranks(n, [&](int64_t rank) {
    Group group(
        c10d_group(c10d_backend(world()), {all_ranks(n), rank, "tp"}), "tp");
    check(group);
  });
}

// CPU tensors travel over a store; the other device type has no tensors here.
void on_per_device(int64_t n, const Check& check) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_store_ranks(n, [&](int64_t rank) { // with a store of its own
    std::map<std::string, int64_t> rounds;
    const auto over_store = [&](auto members, const RendezvousInfo& info) {
      return std::make_shared<StoreBackend>(
          std::move(members), info.store, rounds);
    };
    const auto fake = [](auto members, const RendezvousInfo&) {
      return detail::fake_backend(std::move(members));
    };
    RendezvousInfo place;
    place.store = store;
    Group group(
        detail::per_device_backend(
            {all_ranks(n), rank, "tp"},
            place,
            {{at::kCPU, "store", over_store}, {at::kMeta, "fake", fake}}),
        "tp");
    check(group);
  });
}

void on_fake(const Check& check) {
  Group group(detail::fake_backend({all_ranks(4), 1, "fake"}), "fake");
  check(group);
}

using Entries = std::vector<ContractRanks>;

#define ON_BACKEND(name, most, ranks) \
  INSTANTIATE_TEST_SUITE_P(name, Contract, on_backend(most, ranks), name_of)

ON_BACKEND(
    Threads,
    Needs::kComparedCalls,
    of_sizes({2, 3, 4, 5, 6, 7, 8, 16}, on_threads));
ON_BACKEND(
    SomeThreads,
    Needs::kComparedCalls,
    (Entries{{"3_of_5", on_some_threads}}));
ON_BACKEND(SevenFunctions, Needs::kPeers, of_sizes({2, 3}, on_store(false)));
ON_BACKEND(Checked, Needs::kComparedCalls, of_sizes({2, 3}, on_store(true)));
ON_BACKEND(C10d, Needs::kPeers, of_sizes({2, 3}, on_c10d));
ON_BACKEND(
    Gloo,
    Needs::kPeers,
    of_sizes({2, 3}, on_made_by(detail::find_backend("gloo"))));
ON_BACKEND(PerDevice, Needs::kPeers, of_sizes({2}, on_per_device));
ON_BACKEND(Fake, Needs::kNothing, (Entries{{"1_of_4", on_fake}}));

TEST(ContractOfSizes, ThreadsDoNotExchangeThem) {
  on_threads(2, [](Group& group) { EXPECT_FALSE(group.exchanges_sizes()); });
  on_store(false)(
      2, [](Group& group) { EXPECT_TRUE(group.exchanges_sizes()); });
}

} // namespace TEST_SOURCE
} // namespace dtensor
