// SPDX-License-Identifier: BSD-3-Clause
// Identity of a rank, and the state that it inherits from the caller of
// run_ranks().
#include <ATen/Parallel.h>
#include <dtensor/comm/ranks.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>

#include <set>
#include <thread>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;

TEST(Ranks, AreThreadsWithARankNumber) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int64_t> seen;
  run_ranks(5, [&](int64_t rank) {
    EXPECT_EQ(get_rank(), rank);
    EXPECT_EQ(get_world_size(), 5);
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    seen.push_back(rank);
  });
  EXPECT_EQ(threads.size(), 5U);
  EXPECT_THAT(seen, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(get_rank(), 0);
  EXPECT_EQ(get_world_size(), 1);
}

TEST(Ranks, NeedAtLeastOne) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] { run_ranks(0, [] {}); }),
      "[run_ranks] the number of ranks must be positive: 0. Pass at least 1.");
}

TEST(Ranks, DoNotNest) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          if (rank == 1) {
            run_ranks(2, [] {});
          }
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: [run_ranks] called from rank 1 "
      "of 2. Ranks cannot be nested: call this function outside of ranks.");
}

TEST(Ranks, TakeOverGradAndInferenceMode) {
  {
    const at::NoGradGuard no_grad;
    run_ranks(2, [] { EXPECT_FALSE(at::GradMode::is_enabled()); });
  }
  {
    const c10::InferenceMode inference;
    run_ranks(2, [] { EXPECT_TRUE(c10::InferenceMode::is_enabled()); });
  }
  run_ranks(2, [] {
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_FALSE(c10::InferenceMode::is_enabled());
  });
}

TEST(Ranks, ShareTheCallersThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  run_ranks(2, [] { EXPECT_EQ(at::get_num_threads(), 2); });
  run_ranks(8, [] { EXPECT_EQ(at::get_num_threads(), 1); });
  run_ranks(
      2, [] { EXPECT_EQ(at::get_num_threads(), 3); }, {.intra_op_threads = 3});
  EXPECT_EQ(at::get_num_threads(), 4);
  // Threads started later are not affected either.
  std::thread([] { EXPECT_EQ(at::get_num_threads(), 4); }).join();
  at::set_num_threads(before);
}

TEST(Ranks, RunBackwardInTheirOwnThread) {
  run_ranks(3, [](int64_t rank) {
    const at::Tensor x = torch::ones({2}).requires_grad_();
    int64_t seen = -1;
    const at::Tensor y = x * 2;
    y.register_hook([&](const at::Tensor& grad) {
      seen = get_rank();
      return grad * static_cast<double>(seen);
    });
    y.sum().backward();
    EXPECT_EQ(seen, rank);
    EXPECT_EQ(x.grad()[0].item<float>(), 2.0F * static_cast<float>(rank));
  });
}

TEST(Ranks, CommunicateInBackward) {
  run_ranks(3, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1, 2}, "tp");
    const at::Tensor x =
        torch::full({2}, static_cast<double>(rank)).requires_grad_();
    const at::Tensor y = x * x;
    y.register_hook([&](const at::Tensor& grad) {
      return group->all_reduce(grad, ReduceOp::kSum);
    });
    y.sum().backward();
    EXPECT_EQ(x.grad()[0].item<float>(), 6.0F * static_cast<float>(rank));
  });
}

TEST(Ranks, AreTerminatedInBackwardToo) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          const at::Tensor x = torch::ones({2}).requires_grad_();
          const at::Tensor y = x * 2;
          y.register_hook([&](const at::Tensor& grad) {
            TORCH_CHECK(rank == 0, "bad gradient");
            return new_group({0, 1}, "tp")->all_reduce(grad, ReduceOp::kSum);
          });
          y.sum().backward();
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: bad gradient; rank 0 was "
      "terminated in all_reduce on \"tp\"");
}

TEST(NewGroup, ChecksItsMembers) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        new_group({0, 1}, "tp");
      }),
      "[new_group] no rank 1 in a world of 1. Use ranks from 0 to 0.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        new_group({0, 0}, "tp");
      }),
      "[new_group] rank 0 is listed twice. List every rank once.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] { new_group({}, "tp"); }),
      "[new_group] the calling rank 0 is not among the members []. Call it on "
      "the members only.");
}

TEST(NewGroup, GivesTheSameChannelForTheSameRanks) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr first = new_group({0, 1}, "a");
    const GroupPtr second = new_group({0, 1}, "b");
    // Rank 0 enters through one handle, rank 1 through the other.
    const GroupPtr& mine = rank == 0 ? first : second;
    EXPECT_EQ(mine->all_gather(torch::tensor({rank}), 0).numel(), 2);
    EXPECT_EQ(mine->label(), rank == 0 ? "a" : "b");
  });
}

// Returns the resident memory of the process in KB.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t size = 0;
  while (status >> word) {
    if (word == "VmRSS:") {
      status >> size;
    }
  }
  return size;
}

// Repeated runs do not leak: one leaked generator per rank would add 10 MB in
// 2,000 runs.
TEST(SlowRanks, LeaveNoMemoryBehind) {
  const auto run = [](int times) {
    for (int i = 0; i < times; ++i) {
      run_ranks(2, [] {
        const GroupPtr group = new_group({0, 1}, "tp");
        group->all_reduce(torch::rand({4}), ReduceOp::kSum);
      });
    }
  };
  run(300);
  const int64_t before = resident();
  run(2000);
  EXPECT_LT(resident() - before, 3000) << "KB after 2,000 run_ranks";
}

// Returns the growth of resident memory, in KB, after 1 MB blocks have been
// allocated and freed.
int64_t left_of_freed_blocks() {
  const int64_t before = resident();
  std::vector<std::unique_ptr<char[]>> blocks;
  blocks.reserve(300); // allocated below all blocks
  for (int i = 0; i < 300; ++i) {
    blocks.push_back(std::make_unique<char[]>(1 << 20)); // zeroed, so resident
  }
  blocks.clear();
  return resident() - before;
}

TEST(SlowRanks, KeepFreedMemoryWhileTheyLive) {
  {
    const Ranks ranks(1);
    EXPECT_GT(left_of_freed_blocks(), 200 << 10);
    run_ranks(2, [] {});
    // The blocks are allocated from the retained memory.
    EXPECT_GT(left_of_freed_blocks(), -1000);
  }
  // Freeing the next blocks also returns the retained memory.
  EXPECT_LT(left_of_freed_blocks(), -100 * (1 << 10));
  const Ranks ranks(1, {.keep_freed_memory = false});
  EXPECT_LT(left_of_freed_blocks(), 100 << 10);
}

} // namespace TEST_SOURCE
} // namespace dtensor
