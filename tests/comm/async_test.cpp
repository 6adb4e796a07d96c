// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous collectives of ranks that are threads: how far ranks may run
// ahead of each other, and the effects of a failed rank. Results are tested in
// contract_test.cpp.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>
#include <thread>

#include "collective_inputs.h"
#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// An input that is moved in is kept and read in place. A copied input is
// released as soon as the caller drops it.
TEST(AsyncCollectives, ReadMovedInputsInPlace) {
  run_ranks(2, [](int64_t rank) {
    const auto group = world();
    for (const bool moves : {true, false}) {
      auto x = torch::full({5000}, static_cast<double>(rank + 1));
      const c10::weak_intrusive_ptr<c10::TensorImpl> mine(x.getIntrusivePtr());
      const auto sum = moves
          ? group->all_reduce_async(std::move(x), ReduceOp::kSum)
          : group->all_reduce_async(x, ReduceOp::kSum);
      x.reset();
      EXPECT_EQ(mine.expired(), !moves);
      expect_equal(sum->wait(), torch::full({5000}, 3.0));
    }
  });
}

TEST(AsyncCollectives, EnterWithoutWaiting) {
  std::atomic<bool> rank_0_is_on{false};
  run_ranks(2, [&](int64_t rank) {
    const auto group = world();
    if (rank == 1) {
      while (!rank_0_is_on) { // enter only after rank 0 has continued
        std::this_thread::yield();
      }
    }
    const auto sum = group->all_reduce_async(torch::ones({9}), ReduceOp::kSum);
    rank_0_is_on = true;
    expect_equal(sum->wait(), torch::full({9}, 2.0));
  });
}

// Rank 1 ends without waiting for its result; rank 0 still gets its own.
TEST(AsyncCollectives, NeedNoWaitIfTheResultIsUnused) {
  std::atomic<bool> rank_1_is_gone{false};
  run_ranks(2, [&](int64_t rank) {
    const auto group = world();
    struct Tell {
      std::atomic<bool>& gone;
      ~Tell() {
        gone = true;
      }
    };
    std::optional<Tell> tell;
    if (rank == 1) {
      tell.emplace(Tell{rank_1_is_gone});
    }
    const auto sum =
        group->all_reduce_async(torch::ones({90000}), ReduceOp::kSum);
    if (rank == 0) {
      while (!rank_1_is_gone) {
        std::this_thread::yield();
      }
      expect_equal(sum->wait(), torch::full({90000}, 2.0));
    }
  });
}

TEST(AsyncCollectives, OutliveTheRanksThatStartedThem) {
  std::vector<PendingPtr> left(2);
  run_ranks(2, [&](int64_t rank) {
    left[static_cast<size_t>(rank)] =
        world()->all_reduce_async(torch::ones({50000}), ReduceOp::kSum);
  });
  expect_equal(left[1]->wait(), torch::full({50000}, 2.0));
  expect_equal(left[0]->wait(), torch::full({50000}, 2.0));
}

TEST(AsyncCollectives, MayInterleaveWithSynchronousOnes) {
  run_ranks(2, [](int64_t rank) {
    const auto group = world();
    PendingPtr sum;
    const auto enter = [&] {
      sum = group->all_reduce_async(torch::ones({9}), ReduceOp::kSum);
    };
    if (rank == 0) {
      enter();
    }
    group->all_gather(torch::ones({2000}), 0);
    if (rank == 1) {
      enter();
    }
    expect_equal(sum->wait(), torch::full({9}, 2.0));
  });
}

std::string on_two(const std::function<void(Group&, int64_t)>& fn) {
  return error_of([&] {
    run_ranks(2, [&](int64_t rank) { fn(*new_group({0, 1}, "tp"), rank); });
  });
}

TEST(AsyncErrors, OfOneRankTerminateTheOthers) {
  EXPECT_EQ(
      on_two([](Group& group, int64_t rank) {
        TORCH_CHECK(rank == 0, "rank 1 has had enough");
        group.all_reduce_async(torch::ones({3}), ReduceOp::kSum)->wait();
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: rank 1 has had enough; rank 0 "
      "was terminated in all_reduce on \"tp\"");
  EXPECT_EQ(
      on_two([](Group& group, int64_t rank) {
        if (rank == 0) {
          group.all_reduce_async(torch::ones({3}), ReduceOp::kSum)->wait();
        }
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 0: "
      "[all_reduce] \"tp\" waits for rank 1, which has ended. Call the same "
      "collectives on every rank.");
}

TEST(AsyncErrors, DeadlocksAreDetected) {
  EXPECT_EQ(
      on_two([](Group& group, int64_t rank) {
        if (rank == 0) {
          group.all_reduce_async(torch::ones({3}), ReduceOp::kSum)->wait();
        } else {
          group.all_reduce(torch::ones({3}), ReduceOp::kSum);
        }
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [deadlock] every rank "
      "waits for another: rank 0 waits in all_reduce on \"tp\" for rank 1; "
      "rank 1 waits in all_reduce on \"tp\" for rank 0. Call the collectives "
      "of a group in the same order on all its ranks.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
