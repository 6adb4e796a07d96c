// SPDX-License-Identifier: BSD-3-Clause
// Timeouts of ranks that are threads: timeouts of the world, of a group, and of
// a call.
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;

GroupPtr tp() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "tp");
}

TEST(Timeout, NamesTheMissingRanks) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(
            3,
            [](int64_t rank) {
              if (rank > 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(300));
              } else {
                tp()->barrier();
              }
            },
            {.timeout = std::chrono::milliseconds(50)});
      }),
      "[run_ranks] 1 of 3 ranks failed. rank 0: [barrier] timed out after 50 "
      "ms on \"tp\" waiting for ranks 1, 2. Call the same collectives on every "
      "rank, or raise the timeout of run_ranks.");
}

using std::chrono::milliseconds;

// Returns the error of rank 0, which waits alone for rank 1.
template <typename Fn>
std::string error_alone(const Fn& fn) {
  return error_of([&] {
    run_ranks(2, [&](int64_t rank) {
      if (rank == 0) {
        fn();
      } else {
        std::this_thread::sleep_for(milliseconds(300));
      }
    });
  });
}

constexpr const char* kAfter40 =
    "timed out after 40 ms on \"tp\" waiting for rank 1. Call the same "
    "collectives on every rank, or raise this timeout.";

TEST(Timeout, OfAGroup) {
  const GroupOptions options{.timeout = milliseconds(40)};
  const std::string where = "[run_ranks] 1 of 2 ranks failed. rank 0: ";
  EXPECT_EQ(
      error_alone([&] {
        new_group({0, 1}, "tp", options)->barrier();
      }),
      where + "[barrier] " + kAfter40);
  EXPECT_EQ(
      error_alone([&] {
        new_group({0, 1}, "tp", options)
            ->all_reduce_async(torch::ones({4}), ReduceOp::kSum)
            ->wait();
      }),
      where + "[all_reduce] " + kAfter40);
}

TEST(Timeout, OfACallOverridesThatOfItsGroup) {
  const std::string where = "[run_ranks] 1 of 2 ranks failed. rank 0: ";
  for (const auto of_group : {milliseconds(1), milliseconds(100'000)}) {
    EXPECT_EQ(
        error_alone([&] {
          const auto group = new_group({0, 1}, "tp", {.timeout = of_group});
          const CollectiveTimeout outer(milliseconds(5));
          const CollectiveTimeout inner(milliseconds(40));
          group->all_gather(torch::ones({4}), 0);
        }),
        where + "[all_gather] " + kAfter40);
  }
}

TEST(Timeout, OfOtherCallsIsThatOfTheWorld) {
  run_ranks(2, [](int64_t rank) {
    { const CollectiveTimeout limit(milliseconds(1)); }
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(50));
    }
    tp()->barrier();
  });
}

TEST(Timeout, IsPositive) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] { CollectiveTimeout(milliseconds(0)); }),
      "[CollectiveTimeout] the timeout must be positive: 0 ms. Leave it out to "
      "use the world's timeout.");
  run_ranks(2, [] {
    EXPECT_EQ(
        error_of<c10::ValueError>([] {
          new_group({0, 1}, "tp", {.timeout = milliseconds(-1)});
        }),
        "[new_group] the timeout must be positive: -1 ms. Leave it out to use "
        "the world's timeout.");
  });
}

TEST(Timeout, MayBeTheLongestPossible) {
  run_ranks(
      2,
      [](int64_t rank) {
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        tp()->barrier();
      },
      {.timeout = std::chrono::milliseconds::max()});
}

// If a rank catches the error and continues, other ranks may wait for it until
// their timeout. The report includes the caught error.
TEST(Timeout, IsReportedEvenIfTheRankCaughtIt) {
  const std::string caught =
      "rank 0 caught: [barrier] timed out after 50 ms on \"tp\" waiting for "
      "rank 1. Call the same collectives on every rank, or raise the timeout "
      "of run_ranks.; ";
  EXPECT_EQ(
      error_of([] {
        std::atomic<bool> wait_error{false};
        std::atomic<bool> tried{false};
        run_ranks(
            2,
            [&](int64_t rank) {
              if (rank == 0) {
                EXPECT_THROW(tp()->barrier(), c10::Error);
                wait_error = true;
              }
              while (!wait_error) {
                std::this_thread::yield();
              }
              if (rank == 1) {
                const GroupPtr group = tp();
                struct AtEnd {
                  std::atomic<bool>& tried;
                  ~AtEnd() {
                    tried = true;
                  }
                } at_end{tried};
                group->barrier();
              }
              while (!tried) {
                std::this_thread::yield();
              }
            },
            {.timeout = std::chrono::milliseconds(50)});
      }),
      "[run_ranks] 0 of 2 ranks failed. " + caught +
          "rank 1 was terminated in barrier on \"tp\"");
}

// Runs some rounds that agree, so that notices of earlier rounds remain in the
// buffers.
void agree(Group& group) {
  for (int round = 0; round < 5; ++round) {
    group.all_reduce(torch::ones({3}), ReduceOp::kSum);
  }
}

TEST(SmallCollectivesTimeout, NamesTheMissingRank) {
  const std::string text = error_of([] {
    run_ranks(
        2,
        [](int64_t rank) {
          const GroupPtr group = tp();
          agree(*group);
          if (rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
          }
          group->all_reduce(torch::ones({2}), ReduceOp::kSum);
        },
        {.timeout = std::chrono::milliseconds(50)});
  });
  EXPECT_NE(
      text.find(
          "[all_reduce] timed out after 50 ms on \"tp\" waiting for rank 1"),
      std::string::npos)
      << text;
}

// A rank that continues after its error finds the group closed.
TEST(SmallCollectivesTimeout, ClosesTheGroup) {
  const std::string text = error_of([] {
    run_ranks(
        2,
        [](int64_t rank) {
          const GroupPtr group = tp();
          if (rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            group->barrier();
            group->barrier();
            return;
          }
          try {
            group->barrier();
            ADD_FAILURE() << "the barrier held without rank 1";
          } catch (const c10::Error&) {
          }
          group->barrier();
        },
        {.timeout = std::chrono::milliseconds(40)});
  });
  EXPECT_NE(text, "nothing was thrown");
}

} // namespace TEST_SOURCE
} // namespace dtensor
