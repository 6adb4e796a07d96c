// SPDX-License-Identifier: BSD-3-Clause
// Ranks: state that a rank keeps from one run to the next, and the end of
// ranks.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <future>
#include <iterator>
#include <set>
#include <thread>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;

TEST(LivingRanks, KeepThreadsGroupsAndMeshes) {
  Ranks ranks(3);
  EXPECT_EQ(ranks.size(), 3);
  std::vector<std::thread::id> threads(3);
  std::vector<GroupPtr> groups(3);
  std::vector<DeviceMesh> meshes(3);
  ranks.run([&](int64_t rank) {
    const auto i = static_cast<size_t>(rank);
    threads[i] = std::this_thread::get_id();
    groups[i] = new_group({0, 1, 2}, "tp");
    meshes[i] = init_device_mesh(at::kCPU, {3}, {"tp"});
  });
  EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), 3U);
  for (int step = 0; step < 5; ++step) {
    ranks.run([&](int64_t rank) {
      const auto i = static_cast<size_t>(rank);
      EXPECT_EQ(threads[i], std::this_thread::get_id());
      EXPECT_EQ(get_rank(), rank);
      EXPECT_EQ(meshes[i], init_device_mesh(at::kCPU, {3}, {"tp"}));
      const at::Tensor x = torch::tensor({rank + step});
      const at::Tensor sum = groups[i]->all_reduce(x, ReduceOp::kSum);
      EXPECT_EQ(sum.item<int64_t>(), 3 + 3 * step);
      EXPECT_TRUE(
          sum.equal(get_group(meshes[i]).all_reduce(x, ReduceOp::kSum)));
    });
  }
  EXPECT_EQ(get_world_size(), 1);
}

// A rank may enter a collective in one run and its peer in the next run, where
// both wait for each other.
TEST(LivingRanks, SynchronizeInEachRun) {
  Ranks ranks(2);
  std::vector<PendingPtr> pending(2);
  ranks.run([&](int64_t rank) {
    if (rank == 0) {
      pending[0] = new_group({0, 1}, "tp")
                       ->all_reduce_async(torch::ones({2}), ReduceOp::kSum);
    }
  });
  ranks.run([&](int64_t rank) {
    if (rank == 1) {
      pending[1] = new_group({0, 1}, "tp")
                       ->all_reduce_async(torch::ones({2}), ReduceOp::kSum);
    }
    const at::Tensor sum = pending[static_cast<size_t>(rank)]->wait();
    EXPECT_TRUE(sum.equal(torch::full({2}, 2.0F)));
  });
}

TEST(LivingRanks, TakeOverTheCallersStateInEachRun) {
  Ranks ranks(2);
  {
    const at::NoGradGuard no_grad;
    ranks.run([] { EXPECT_FALSE(at::GradMode::is_enabled()); });
  }
  ranks.run([] { EXPECT_TRUE(at::GradMode::is_enabled()); });
  {
    const c10::InferenceMode inference;
    ranks.run([] { EXPECT_TRUE(c10::InferenceMode::is_enabled()); });
  }
  ranks.run([] { EXPECT_FALSE(c10::InferenceMode::is_enabled()); });
}

// Each run continues the rank's random sequence, as one program that draws
// twice. The caller's generator advances independently.
TEST(LivingRanks, ContinueTheirRandomStreams) {
  torch::manual_seed(3);
  const at::Tensor first = torch::rand({4});
  const at::Tensor second = torch::rand({4});
  torch::manual_seed(3);
  Ranks ranks(2);
  ranks.run([&] { EXPECT_TRUE(torch::equal(torch::rand({4}), first)); });
  EXPECT_TRUE(torch::equal(torch::rand({4}), first));
  ranks.run([&] { EXPECT_TRUE(torch::equal(torch::rand({4}), second)); });
  EXPECT_TRUE(torch::equal(torch::rand({4}), second));
}

TEST(LivingRanks, EndWithARunThatFails) {
  Ranks ranks(2);
  GroupPtr group;
  ranks.run([&](int64_t rank) {
    const GroupPtr mine = new_group({0, 1}, "tp");
    mine->barrier();
    if (rank == 0) {
      group = mine;
    }
  });
  EXPECT_EQ(
      error_of<c10::ValueError>([&] {
        ranks.run([&](int64_t rank) {
          TORCH_CHECK_VALUE(rank == 0, "no such row");
          group->barrier();
        });
      }),
      "[Ranks::run] 1 of 2 ranks failed. rank 1: no such row; rank 0 was "
      "terminated in barrier on \"tp\"");
  EXPECT_EQ(
      error_of([&] { ranks.run([] {}); }),
      "[Ranks::run] an earlier function failed, which terminated 2 ranks. Make "
      "new Ranks.");
  EXPECT_EQ(
      error_of([&] { group->barrier(); }),
      "[barrier] group \"tp\" belongs to rank 0 of a set of Ranks that has "
      "ended, but this thread is not a rank. Build one model per rank, in the "
      "function that the ranks run, and return only plain tensors from it.");
}

TEST(LivingRanks, CommunicateAfterADeadlockThatTheyCaught) {
  Ranks ranks(2);
  std::vector<GroupPtr> groups(2);
  ranks.run([&](int64_t rank) {
    GroupPtr& group = groups[static_cast<size_t>(rank)];
    group = new_group({0, 1}, "tp");
    EXPECT_THAT(
        error_of([&] { group->recv(torch::ones({2}), 1 - rank); }),
        ::testing::StartsWith("[deadlock] every rank waits for another: "));
  });
  ranks.run([&](int64_t rank) {
    Group& group = *groups[static_cast<size_t>(rank)];
    for (const int64_t numel : {2, 50'000}) {
      const auto sum = group.all_reduce(torch::ones({numel}), ReduceOp::kSum);
      EXPECT_TRUE(sum.equal(torch::full({numel}, 2.0F)));
    }
    if (rank == 0) { // the receiver waits
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group.send(torch::ones({2}), 1);
    } else {
      EXPECT_TRUE(group.recv(torch::zeros({2}), 0).equal(torch::ones({2})));
    }
  });
}

TEST(LivingRanks, RunOneFunctionAtATime) {
  Ranks ranks(2);
  std::promise<void> begun;
  std::promise<void> over;
  std::thread other([&] {
    ranks.run([&](int64_t rank) {
      if (rank == 0) {
        begun.set_value();
      }
      if (rank == 1) {
        over.get_future().wait();
      }
    });
  });
  begun.get_future().wait();
  EXPECT_EQ(
      error_of([&] { ranks.run([] {}); }),
      "[Ranks::run] another thread's function is running on these ranks. Wait "
      "for it, or make Ranks for each thread.");
  over.set_value();
  other.join();
  ranks.run([] {});
}

TEST(LivingRanks, DoNotNest) {
  Ranks outer(1);
  EXPECT_EQ(
      error_of([&] { outer.run([&] { outer.run([] {}); }); }),
      "[Ranks::run] 1 of 1 ranks failed. rank 0: [Ranks::run] called from rank "
      "0 of 1. Ranks cannot be nested: call this function outside of ranks.");
  EXPECT_EQ(
      error_of([] { run_ranks(1, [] { const Ranks inner(2); }); }),
      "[run_ranks] 1 of 1 ranks failed. rank 0: [Ranks] called from rank 0 of "
      "1. Ranks cannot be nested: call this function outside of ranks.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] { const Ranks none(0); }),
      "[Ranks] the number of ranks must be positive: 0. Pass at least 1.");
}

// Two sets of ranks coexist, each with its own groups.
TEST(LivingRanks, LiveBesideOthers) {
  Ranks a(2);
  Ranks b(2);
  GroupPtr of_a;
  a.run([&](int64_t rank) {
    const GroupPtr mine = new_group({0, 1}, "tp");
    if (rank == 0) {
      of_a = mine;
    }
  });
  std::string text;
  b.run([&](int64_t rank) {
    if (rank == 0) {
      text = error_of([&] { of_a->barrier(); });
    }
  });
  EXPECT_EQ(
      text,
      "[barrier] group \"tp\" belongs to rank 0 of another set of Ranks, but "
      "this is rank 0. Build one model per rank, in the function that the "
      "ranks run, and return only plain tensors from it.");
}

int64_t threads_of_the_program() {
  return std::distance(
      std::filesystem::directory_iterator("/proc/self/task"),
      std::filesystem::directory_iterator());
}

TEST(LivingRanks, StartNoThreadsInLaterRuns) {
  int64_t before = 0;
  {
    Ranks ranks(3);
    std::vector<GroupPtr> groups(3);
    ranks.run([&](int64_t rank) {
      groups[static_cast<size_t>(rank)] = new_group({0, 1, 2}, "tp");
    });
    before = threads_of_the_program();
    for (int i = 0; i < 200; ++i) {
      ranks.run([&](int64_t rank) {
        groups[static_cast<size_t>(rank)]->all_reduce(
            torch::rand({4}), ReduceOp::kSum);
      });
    }
    EXPECT_EQ(threads_of_the_program(), before);
  }
  EXPECT_EQ(threads_of_the_program(), before - 3);
}

// A large result reuses the memory of a freed one. At 40 MB, malloc would not
// keep the memory.
TEST(LivingRanks, ReuseTheMemoryOfFreedLargeResults) {
  Ranks ranks(2);
  ranks.run([](int64_t rank) {
    const auto group = new_group({0, 1}, "tp");
    const auto part = torch::full({5'000'000}, rank + 1, at::kFloat);
    const auto gather = [&] { return group->all_gather(part, 0); };
    at::Tensor whole = gather();
    const void* const mine = whole.data_ptr();
    const auto addresses = group->all_gather_strings(c10::str(mine));
    whole.reset();
    group->barrier();
    whole = gather();
    EXPECT_THAT(addresses, ::testing::Contains(c10::str(whole.data_ptr())));
    EXPECT_EQ(whole.sum().item<double>(), 15'000'000);
    // While a result is alive, another result gets other memory.
    const at::Tensor second = gather();
    EXPECT_NE(second.data_ptr(), whole.data_ptr());
    whole.resize_({10'000'001});
    EXPECT_TRUE(torch::equal(whole.narrow(0, 0, 10'000'000), second));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
