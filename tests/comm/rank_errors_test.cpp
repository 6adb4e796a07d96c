// SPDX-License-Identifier: BSD-3-Clause
// Ranks that do not make the same calls: exact error texts, and no deadlock.
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

const char* const kSameEverywhere =
    ". Call the same collective with the same sizes on every rank.";

// Returns the error of 2 ranks that disagree, without its constant parts.
template <typename Fn>
std::string disagreement(const Fn& fn) {
  std::string text = error_of<c10::ValueError>([&] { run_ranks(2, fn); });
  const std::string head = "[run_ranks] 2 of 2 ranks failed. every rank: ";
  const std::string tail = kSameEverywhere;
  EXPECT_EQ(text.substr(0, head.size()), head);
  EXPECT_GE(text.size(), head.size() + tail.size()) << text;
  EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
  return text.substr(head.size(), text.size() - head.size() - tail.size());
}

TEST(Disagreement, OverTheCollective) {
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        const at::Tensor x = torch::ones({4});
        rank == 0 ? tp()->all_reduce(x, ReduceOp::kSum)
                  : tp()->all_gather(x, 0);
      }),
      "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
      "f32[4] "
      "with sum; rank 1 calls all_gather of f32[4] along dim 0");
}

TEST(Disagreement, OverSizes) {
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        tp()->all_reduce(torch::ones({4, 1 + rank}), ReduceOp::kSum);
      }),
      "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
      "f32[4, "
      "1] with sum; rank 1 calls all_reduce of f32[4, 2] with sum");
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        tp()->all_gather(torch::ones({4, 1 + rank}), 0);
      }),
      "[all_gather] ranks of \"tp\" disagree: rank 0 calls all_gather of "
      "f32[4, "
      "1] along dim 0; rank 1 calls all_gather of f32[4, 2] along dim 0");
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        tp()->all_gather(rank == 0 ? torch::ones({4}) : torch::ones({4, 1}), 0);
      }),
      "[all_gather] ranks of \"tp\" disagree: rank 0 calls all_gather of "
      "f32[4] "
      "along dim 0; rank 1 calls all_gather of f32[4, 1] along dim 0");
}

TEST(Disagreement, OverDtypeOpAndDim) {
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        tp()->all_reduce(
            torch::ones({4}, rank == 0 ? at::kFloat : at::kBFloat16),
            ReduceOp::kSum);
      }),
      "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
      "f32[4] "
      "with sum; rank 1 calls all_reduce of bf16[4] with sum");
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        tp()->all_reduce(
            torch::ones({4}), rank == 0 ? ReduceOp::kSum : ReduceOp::kMax);
      }),
      "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
      "f32[4] "
      "with sum; rank 1 calls all_reduce of f32[4] with max");
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        tp()->reduce_scatter(torch::ones({4, 4}), rank, ReduceOp::kSum);
      }),
      "[reduce_scatter] ranks of \"tp\" disagree: rank 0 calls reduce_scatter "
      "of f32[4, 4] along dim 0 with sum; rank 1 calls reduce_scatter of "
      "f32[4, "
      "4] along dim 1 with sum");
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        const at::ScalarType dtype = rank == 0 ? at::kFloat : at::kLong;
        tp()->all_to_all({torch::ones({1}, dtype), torch::ones({2}, dtype)});
      }),
      "[all_to_all] ranks of \"tp\" disagree: rank 0 calls all_to_all of "
      "f32[1], f32[2]; rank 1 calls all_to_all of i64[1], i64[2]");
}

TEST(Disagreement, OverTheRoot) {
  EXPECT_EQ(
      disagreement(
          [](int64_t rank) { tp()->broadcast(torch::ones({4}), rank); }),
      "[broadcast] ranks of \"tp\" disagree: rank 0 calls broadcast of f32[4] "
      "from rank 0; rank 1 calls broadcast of f32[4] from rank 1");
  EXPECT_EQ(
      disagreement([](int64_t rank) { tp()->gather(torch::ones({4}), rank); }),
      "[gather] ranks of \"tp\" disagree: rank 0 calls gather of f32[4] to "
      "rank "
      "0; rank 1 calls gather of f32[4] to rank 1");
  EXPECT_EQ(
      disagreement([](int64_t rank) {
        const at::Tensor x = torch::ones({2});
        tp()->scatter(
            rank == 0 ? std::vector<at::Tensor>{x, x}
                      : std::vector<at::Tensor>{},
            torch::ones({3}),
            0);
      }),
      "[scatter] ranks of \"tp\" disagree: rank 0 calls scatter of f32[2], "
      "f32[2] from rank 0; rank 1 calls scatter of f32[3] from rank 0");
}

TEST(Disagreement, GroupsRanksWithEqualCalls) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        run_ranks(4, [](int64_t rank) {
          if (rank == 2) {
            tp()->barrier();
          } else {
            tp()->all_gather_strings("hello");
          }
        });
      }),
      std::string(
          "[run_ranks] 4 of 4 ranks failed. every rank: [all_gather_strings] "
          "ranks of \"tp\" disagree: ranks 0, 1, 3 call all_gather_strings; "
          "rank "
          "2 calls barrier") +
          kSameEverywhere);
}

TEST(Disagreement, NamesGlobalRanks) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        run_ranks(4, [](int64_t rank) {
          if (rank % 2 == 1) {
            new_group({1, 3}, "dp")
                ->all_reduce(torch::ones({rank}), ReduceOp::kSum);
          }
        });
      }),
      std::string("[run_ranks] 2 of 4 ranks failed. ranks 1, 3: [all_reduce] "
                  "ranks of \"dp\" disagree: rank 1 calls all_reduce of f32[1] "
                  "with sum; rank 3 calls all_reduce of f32[3] with sum") +
          kSameEverywhere);
}

TEST(Disagreement, LeavesTheGroupUsable) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = tp();
    EXPECT_THROW(
        group->all_reduce(torch::ones({1 + rank}), ReduceOp::kSum),
        c10::ValueError);
    EXPECT_EQ(
        group->all_reduce(torch::ones({1}), ReduceOp::kSum).item<float>(),
        2.0F);
  });
}

TEST(Disagreement, OverAMessageIsReportedByTheReceiver) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        run_ranks(2, [](int64_t rank) {
          if (rank == 0) {
            tp()->send(torch::ones({4}), 1);
          } else {
            tp()->recv(torch::ones({4}, at::kLong), 0);
          }
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: [recv] rank 1 expects i64[4] "
      "but rank 0 sent f32[4] on \"tp\". Receive a tensor of the shape and "
      "dtype that is sent.");
}

TEST(FailingRank, TerminatesWaitingRanks) {
  EXPECT_EQ(
      error_of<c10::IndexError>([] {
        run_ranks(4, [](int64_t rank) {
          if (rank == 2) {
            TORCH_CHECK_INDEX(false, "no such row");
          }
          for (;;) {
            tp()->all_reduce(torch::ones({4}), ReduceOp::kSum);
          }
        });
      }),
      "[run_ranks] 1 of 4 ranks failed. rank 2: no such row; ranks 0, 1, 3 "
      "were terminated in all_reduce on \"tp\"");
}

TEST(FailingRank, TerminatesARankWaitingForAMessage) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          TORCH_CHECK(rank == 0, "gone");
          tp()->recv(torch::ones({4}), 1);
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: gone; rank 0 was terminated in "
      "recv on \"tp\"");
}

TEST(FailingRank, ReportsEveryRanksOwnError) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(4, [](int64_t rank) {
          if (rank == 1) {
            TORCH_CHECK_VALUE(false, "too small");
          }
          if (rank == 3) {
            throw std::runtime_error("no disk");
          }
        });
      }),
      "[run_ranks] 2 of 4 ranks failed. rank 1: too small; rank 3: no disk");
}

TEST(FailingRank, KeepsTheTypeThatAllErrorsShare) {
  EXPECT_EQ(
      error_of<c10::NotImplementedError>([] {
        run_ranks(3, [] { TORCH_CHECK_NOT_IMPLEMENTED(false, "not yet"); });
      }),
      "[run_ranks] 3 of 3 ranks failed. every rank: not yet");
  EXPECT_EQ(
      error_of([] { run_ranks(1, [] { throw 7; }); }),
      "[run_ranks] 1 of 1 ranks failed. rank 0: an exception not derived from "
      "std::exception");
}

TEST(FailingRank, IsReportedWithItsCollective) {
  // LibTorch does not implement sum for uint16, so the error is LibTorch's.
  EXPECT_EQ(
      error_of<c10::NotImplementedError>([] {
        run_ranks(2, [] {
          tp()->all_reduce(torch::ones({2}, at::kUInt16), ReduceOp::kSum);
        });
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: \"add_stub\" not "
      "implemented for 'UInt16' (in all_reduce on \"tp\")");
}

TEST(EndedRank, IsNamedByWaitingRanks) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          if (rank == 0) {
            tp()->all_reduce(torch::ones({4}), ReduceOp::kSum);
          }
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 0: [all_reduce] \"tp\" waits for "
      "rank 1, which has ended. Call the same collectives on every rank.");
  EXPECT_EQ(
      error_of([] {
        run_ranks(3, [](int64_t rank) {
          if (rank == 0) {
            new_group({0, 2}, "dp")->recv(torch::ones({4}), 1);
          }
        });
      }),
      "[run_ranks] 1 of 3 ranks failed. rank 0: [recv] \"dp\" waits for rank "
      "2, "
      "which has ended. Call the same collectives on every rank.");
}

TEST(EndedRank, MayLeaveMessagesBehind) {
  run_ranks(2, [](int64_t rank) {
    if (rank == 0) {
      tp()->send(torch::ones({1}), 1);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(tp()->recv(torch::zeros({1}), 0).item<float>(), 1.0F);
    }
  });
}

TEST(EndedRank, DoesNotDisturbOthers) {
  run_ranks(3, [](int64_t rank) {
    if (rank < 2) {
      const GroupPtr pair = new_group({0, 1}, "pair");
      for (int i = 0; i < 50; ++i) {
        pair->barrier();
      }
    }
  });
}

const char* const kSameOrder =
    ". Call the collectives of a group in the same order on all its ranks.";

TEST(Deadlock, IsReportedWithEveryRanksCollective) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(4, [](int64_t rank) {
          const int64_t row = rank / 2;
          const int64_t column = rank % 2;
          const GroupPtr dp = new_group({column, column + 2}, "dp");
          const GroupPtr rows = new_group({2 * row, 2 * row + 1}, "tp");
          const at::Tensor x = torch::ones({4});
          // Rank 0 waits along its column, rank 1 along its row, and so on: a
          // cycle through the mesh.
          if (rank == 0 || rank == 3) {
            dp->all_reduce(x, ReduceOp::kSum);
          } else {
            rows->all_gather(x, 0);
          }
        });
      }),
      std::string(
          "[run_ranks] 4 of 4 ranks failed. every rank: [deadlock] every rank "
          "waits for another: rank 0 waits in all_reduce on \"dp\" for rank 2; "
          "rank 1 waits in all_gather on \"tp\" for rank 0; rank 2 waits in "
          "all_gather on \"tp\" for rank 3; rank 3 waits in all_reduce on "
          "\"dp\" for rank 1") +
          kSameOrder);
}

TEST(Deadlock, IsAReceiveWithoutASend) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          tp()->recv(torch::ones({4}), 1 - rank, rank);
        });
      }),
      std::string(
          "[run_ranks] 2 of 2 ranks failed. every rank: [deadlock] every rank "
          "waits for another: rank 0 waits in recv on \"tp\" for rank 1; rank "
          "1 "
          "waits in recv on \"tp\" for rank 0") +
          kSameOrder);
}

TEST(Deadlock, NamesEndedRanks) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(3, [](int64_t rank) {
          if (rank < 2) {
            new_group({0, 1}, "tp")->recv(torch::ones({4}), 1 - rank);
          }
        });
      }),
      std::string(
          "[run_ranks] 2 of 3 ranks failed. ranks 0, 1: [deadlock] every rank "
          "waits for another: rank 0 waits in recv on \"tp\" for rank 1; rank "
          "1 "
          "waits in recv on \"tp\" for rank 0; rank 2 has ended") +
          kSameOrder);
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
      "rank, or raise RunRanksOptions::timeout.");
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

// If a rank catches the error and continues, the others wait in vain. The
// report includes the caught error.
TEST(Timeout, IsReportedEvenIfTheRankCaughtIt) {
  const std::string caught =
      "rank 0 caught: [barrier] timed out after 50 ms on \"tp\" waiting for "
      "rank 1. Call the same collectives on every rank, or raise "
      "RunRanksOptions::timeout.; ";
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

// A cancelled rank may call another collective before it rethrows. The report
// then names no collective for it.
TEST(FailingRank, IsReportedWhereItWasTerminated) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          TORCH_CHECK(rank == 0, "gone");
          try {
            tp()->barrier();
          } catch (const c10::Error&) {
            ADD_FAILURE() << "being ended is not an error to be caught";
          } catch (...) {
            const auto ended = std::current_exception();
            EXPECT_ANY_THROW(tp()->barrier());
            std::rethrow_exception(ended);
          }
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: gone; rank 0 was terminated");
}

} // namespace TEST_SOURCE
} // namespace dtensor
