// SPDX-License-Identifier: BSD-3-Clause
// Ranks that do not make the same calls in collectives over small tensors: the
// errors are those of large tensors, and no rank deadlocks.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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

// Returns the error of two ranks that disagree, without its constant parts. It
// does not depend on whether their tensors are small or large.
std::string disagreement(const std::function<void(Group&, int64_t)>& fn) {
  std::string text = error_of<c10::ValueError>(
      [&] { run_ranks(2, [&](int64_t rank) { fn(*tp(), rank); }); });
  const std::string head =
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_reduce] ranks of "
      "\"tp\" disagree: rank 0 calls all_reduce of ";
  const std::string tail =
      ". Call the same collective with the same sizes on every rank.";
  EXPECT_EQ(text.substr(0, head.size()), head);
  EXPECT_GE(text.size(), head.size() + tail.size()) << text;
  EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
  return text.substr(head.size(), text.size() - head.size() - tail.size());
}

// Runs some rounds that agree, so that notices of earlier rounds remain in the
// buffers.
void agree(Group& group) {
  for (int round = 0; round < 5; ++round) {
    group.all_reduce(torch::ones({3}), ReduceOp::kSum);
  }
}

TEST(SmallDisagreement, OfSmallAndSmall) {
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        group.all_reduce(torch::ones({3 + rank}), ReduceOp::kSum);
      }),
      "f32[3] with sum; rank 1 calls all_reduce of f32[4] with sum");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        group.all_reduce(
            torch::ones({3}, rank == 0 ? at::kFloat : at::kInt),
            ReduceOp::kSum);
      }),
      "f32[3] with sum; rank 1 calls all_reduce of i32[3] with sum");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        group.all_reduce(
            torch::ones({3}), rank == 0 ? ReduceOp::kMin : ReduceOp::kMax);
      }),
      "f32[3] with min; rank 1 calls all_reduce of f32[3] with max");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        rank == 0 ? (void)group.all_reduce(torch::ones({3}), ReduceOp::kSum)
                  : group.barrier();
      }),
      "f32[3] with sum; rank 1 calls barrier");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        rank == 0 ? group.all_reduce(torch::ones({3}), ReduceOp::kSum)
                  : group.broadcast(torch::ones({3}), 0);
      }),
      "f32[3] with sum; rank 1 calls broadcast of f32[3] from rank 0");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        rank == 0 ? group.all_reduce(torch::ones({3}), ReduceOp::kSum)
                  : group.reduce_scatter(torch::ones({3}), 0, ReduceOp::kSum);
      }),
      "f32[3] with sum; rank 1 calls reduce_scatter of f32[3] along dim 0 "
      "with sum");
}

TEST(SmallDisagreement, OfSmallAndLarge) {
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        group.all_reduce(torch::ones({rank == 0 ? 3 : 5000}), ReduceOp::kSum);
      }),
      "f32[3] with sum; rank 1 calls all_reduce of f32[5000] with sum");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        rank == 0 ? (void)group.all_reduce(torch::ones({5000}), ReduceOp::kSum)
                  : group.barrier();
      }),
      "f32[5000] with sum; rank 1 calls barrier");
  EXPECT_EQ(
      disagreement([](Group& group, int64_t rank) {
        agree(group);
        rank == 0 ? (void)group.all_reduce(torch::ones({3}), ReduceOp::kSum)
                  : (void)group.all_gather_strings("text");
      }),
      "f32[3] with sum; rank 1 calls all_gather_strings");
}

// A rank that fails between small rounds ends the others, even if they have
// been asleep for long.
TEST(SmallCollectivesEnd, WhenARankFails) {
  for (const int64_t ranks : {2, 4, 8}) {
    for (const int64_t wait : {0, 20}) {
      const std::string text = error_of([&] {
        run_ranks(ranks, [&](int64_t rank) {
          const GroupPtr group = tp();
          for (int round = 0; round < 200; ++round) {
            if (rank == 1 && round == 100) {
              std::this_thread::sleep_for(std::chrono::milliseconds(wait));
              TORCH_CHECK(false, "enough");
            }
            group->all_reduce(torch::ones({2}), ReduceOp::kSum);
          }
        });
      });
      const std::string others = ranks == 2 ? "rank 0 was"
          : ranks == 4                      ? "ranks 0, 2, 3 were"
                                            : "ranks 0, 2, 3, 4, 5, 6, 7 "
                                              "were";
      EXPECT_EQ(
          text,
          c10::str(
              "[run_ranks] 1 of ",
              ranks,
              " ranks failed. rank 1: enough; ",
              others,
              " terminated in all_reduce on \"tp\""));
    }
  }
}

TEST(SmallCollectivesEnd, WhenARankReturns) {
  const std::string text = error_of([] {
    run_ranks(2, [](int64_t rank) {
      const GroupPtr group = tp();
      agree(*group);
      if (rank == 0) {
        group->all_reduce(torch::ones({2}), ReduceOp::kSum);
      }
    });
  });
  EXPECT_NE(
      text.find("[all_reduce] \"tp\" waits for rank 1, which has ended"),
      std::string::npos)
      << text;
}

// A deadlock of one rank in a small round and the other in a recv is detected.
TEST(SmallCollectivesEnd, WhenAllWait) {
  const std::string text = error_of([] {
    run_ranks(2, [](int64_t rank) {
      const GroupPtr group = tp();
      agree(*group);
      if (rank == 0) {
        group->all_reduce(torch::ones({2}), ReduceOp::kSum);
      } else {
        group->recv(torch::ones({2}), 0);
      }
    });
  });
  EXPECT_NE(
      text.find("rank 0 waits in all_reduce on \"tp\" for rank 1; rank 1 waits "
                "in recv on \"tp\" for rank 0"),
      std::string::npos)
      << text;
}

TEST(SmallCollectivesEnd, AtTheTimeout) {
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
TEST(SmallCollectivesEnd, ForGoodAfterAnError) {
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
