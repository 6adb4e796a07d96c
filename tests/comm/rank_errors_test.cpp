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

// Returns the error of a sum of uint16, which LibTorch does not implement.
std::string error_of_sum(int64_t ranks, const Sizes& sizes, bool later) {
  return error_of<c10::NotImplementedError>([&] {
    run_ranks(ranks, [&] {
      const auto x = torch::ones(sizes, at::kUInt16);
      later ? tp()->all_reduce_async(x, ReduceOp::kSum)->wait()
            : tp()->all_reduce(x, ReduceOp::kSum);
    });
  });
}

// The ranks reduce tensors that are not small together, each a range of the
// elements. A rank without a range cannot give a result either.
TEST(FailingRank, FailsTheReductionOfAll) {
  const std::string why =
      ": \"add_stub\" not implemented for 'UInt16' (in all_reduce on \"tp\")";
  const std::string ended = " was terminated in all_reduce on \"tp\"";
  for (const bool later : {false, true}) {
    EXPECT_EQ(
        error_of_sum(2, {70'000}, later),
        "[run_ranks] 2 of 2 ranks failed. every rank" + why);
  }
  EXPECT_EQ(
      error_of_sum(3, {1, 1, 1, 1, 1, 1, 1, 1, 2}, /*later=*/false),
      "[run_ranks] 2 of 3 ranks failed. ranks 0, 1" + why + "; rank 2" + ended);
  const auto of_one_block = error_of_sum(2, {5000}, /*later=*/true);
  const std::string begin = "[run_ranks] 1 of 2 ranks failed. rank ";
  EXPECT_TRUE(
      of_one_block == begin + "0" + why + "; rank 1" + ended ||
      of_one_block == begin + "1" + why + "; rank 0" + ended)
      << of_one_block;
}

TEST(FailingRank, EndsOthersWithAnExceptionOfItsOwn) {
  std::string what;
  EXPECT_EQ(
      error_of([&] {
        run_ranks(2, [&](int64_t rank) {
          TORCH_CHECK(rank == 0, "gone");
          try {
            tp()->barrier();
          } catch (const std::exception& error) {
            what = error.what();
            throw;
          }
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: gone; rank 0 was terminated in "
      "barrier on \"tp\"");
  EXPECT_EQ(what, "this rank was terminated because another rank failed");
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

// Runs some rounds that agree, so that notices of earlier rounds remain in the
// buffers.
void agree(Group& group) {
  for (int round = 0; round < 5; ++round) {
    group.all_reduce(torch::ones({3}), ReduceOp::kSum);
  }
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
