// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous collectives. Their results equal those of the synchronous ones
// bit for bit, however far ranks run ahead of each other. They fail in the same
// way when ranks disagree or fail.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <random>
#include <thread>

#include "collective_inputs.h"
#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Returns values with sums that need rounding.
at::Tensor rounding(int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto numel = c10::multiply_integers(sizes);
  const at::Tensor index = torch::arange(numel, at::kDouble) + 1;
  return ((index * (rank * 2 + 3) * 0.7390851332151607).frac() * 200 - 100)
      .view(sizes)
      .to(dtype);
}

void wait_a_little(std::mt19937& random) {
  if (random() % 3 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
  }
}

class Async : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Async, testing::Values(1, 2, 3, 4, 8));

// Sizes below one block, of several blocks, with a remainder, and empty.
const std::vector<std::vector<int64_t>> kShapes =
    {{7, 3}, {260, 129}, {0, 4}, {1, 70001}, {5, 6, 7}};

TEST_P(Async, AllReduceIsTheSynchronousOne) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    std::mt19937 random(static_cast<unsigned>(rank));
    for (const auto& shape : kShapes) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
          const auto x = rounding(rank, shape, dtype);
          const auto truth = group->all_reduce(x, op);
          wait_a_little(random);
          const auto sum = group->all_reduce_async(x, op);
          wait_a_little(random);
          expect_equal(sum->wait(), truth);
          EXPECT_TRUE(sum->wait().is_same(sum->wait()));
        }
      }
    }
  });
}

TEST_P(Async, AllGatherIsTheSynchronousOne) {
  run_ranks(GetParam(), [](int64_t rank) {
    for (int64_t dim = -2; dim < 2; ++dim) {
      std::vector<int64_t> sizes = {300, 40};
      // Some ranks have no rows (or columns).
      sizes[static_cast<size_t>((dim + 2) % 2)] = rank % 3;
      const auto x = rounding(rank, sizes, at::kFloat);
      const auto truth = world()->all_gather(x, dim);
      expect_equal(
          world()->all_gather_async(x, dim, truth.size(dim))->wait(), truth);
    }
  });
}

TEST_P(Async, ReduceScatterAndAllToAllAreTheSynchronousOnes) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    for (const auto& shape : kShapes) {
      const auto x = rounding(rank, shape, at::kFloat);
      for (int64_t dim = 0; dim < 2; ++dim) {
        expect_equal(
            group->reduce_scatter_async(x, dim, ReduceOp::kSum)->wait(),
            group->reduce_scatter(x, dim, ReduceOp::kSum));
        // The last rank receives everything except one element, which the first
        // rank receives.
        Sizes sizes(static_cast<size_t>(group->size()));
        sizes.back() = x.size(dim);
        if (group->size() > 1 && x.size(dim) > 0) {
          sizes.front() = 1;
          sizes.back() -= 1;
        }
        auto out_sizes = x.sizes().vec();
        out_sizes[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(rank)];
        const auto out = at::empty(out_sizes, x.options());
        const auto part =
            group->reduce_scatter_async(x, dim, ReduceOp::kSum, out, sizes)
                ->wait();
        EXPECT_TRUE(part.is_same(out));
        expect_equal(
            part, group->reduce_scatter(x, dim, ReduceOp::kSum, sizes));
        expect_equal(
            group->shard_dim_alltoall_async(x, dim, 1 - dim)->wait(),
            group->shard_dim_alltoall(x, dim, 1 - dim));
      }
    }
  });
}

// Rank r sends 100 r + t elements to rank t, and nothing to the next rank.
TEST_P(Async, AllToAllIsTheSynchronousOne) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    const auto count = [&](int64_t from, int64_t to) {
      return to == (from + 1) % group->size() ? 0 : 100 * from + to;
    };
    Sizes sent;
    Sizes received;
    std::vector<at::Tensor> parts;
    for (int64_t peer = 0; peer < group->size(); ++peer) {
      sent.push_back(count(rank, peer));
      received.push_back(count(peer, rank));
      parts.push_back(rounding(rank * 8 + peer, {sent.back()}, at::kFloat));
    }
    const auto pending =
        group->all_to_all_async(torch::cat(parts), sent, received);
    expect_equal(pending->wait(), torch::cat(group->all_to_all(parts)));
    EXPECT_TRUE(pending->wait().is_same(pending->wait()));
  });
}

// Blocks travel around a ring while their sender still reads them.
TEST_P(Async, AllToAllAroundARing) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    const auto n = group->size();
    const auto of = [](int64_t owner) {
      return torch::full({5000 + owner, 2}, static_cast<double>(owner));
    };
    const auto counts = [&](int64_t peer, int64_t owner) {
      Sizes all(static_cast<size_t>(n), 0);
      all[static_cast<size_t>(peer)] = of((owner + n) % n).numel();
      return all;
    };
    at::Tensor block = of(rank);
    for (int64_t step = 0; step + 1 < n; ++step) {
      const at::Tensor view = block;
      const auto next = group->all_to_all_async(
          std::move(block),
          counts((rank + 1) % n, rank - step),
          counts((rank + n - 1) % n, rank - step - 1));
      expect_equal(view.view({-1, 2}), of((rank - step + n) % n));
      block = next->wait();
    }
    expect_equal(block.view({-1, 2}), of((rank + 1) % n));
  });
}

TEST_P(Async, ManyInFlightMayBeWaitedForInAnyOrder) {
  constexpr size_t kMany = 40;
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    std::mt19937 random(static_cast<unsigned>(rank) + 100);
    for (int round = 0; round < 10; ++round) {
      std::vector<PendingPtr> pending;
      for (size_t i = 0; i < kMany; ++i) {
        pending.push_back(group->all_reduce_async(
            torch::full(
                {1 + static_cast<int64_t>(i) * 700},
                static_cast<double>(rank + 1)),
            ReduceOp::kSum));
        if (i % 7 == 0) { // interleaved with other collectives
          group->barrier();
        }
      }
      std::vector<size_t> order(kMany);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      const double n = static_cast<double>(get_world_size());
      for (const size_t i : order) {
        if (random() % 5 == 0) {
          pending[i] = nullptr; // no rank waits for this one
          continue;
        }
        expect_equal(
            pending[i]->wait(),
            torch::full({1 + static_cast<int64_t>(i) * 700}, n * (n + 1) / 2));
      }
    }
  });
}

TEST_P(Async, InputMayBeModifiedImmediately) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    const double n = static_cast<double>(get_world_size());
    for (int i = 0; i < 20; ++i) {
      auto x = torch::full({2000}, static_cast<double>(rank + 1));
      const auto view = x.view({1000, 2});
      const auto a = group->all_reduce_async(x, ReduceOp::kSum);
      const auto b = group->all_gather_async(
          view, 0, 1000 * get_world_size()); // shares x's memory
      if (get_world_size() > 1) {
        x.fill_(-1);
      }
      EXPECT_EQ(a->wait().sum().item<double>(), 2000 * n * (n + 1) / 2);
      EXPECT_EQ(b->wait().sum().item<double>(), 2000 * n * (n + 1) / 2);
    }
  });
}

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

// Memory that the tensor does not own is copied, even if the tensor is moved
// in.
TEST(AsyncCollectives, CopyMemoryTheyDoNotOwn) {
  run_ranks(2, [](int64_t rank) {
    const auto group = world();
    std::vector<float> mine(5000, static_cast<float>(rank + 1));
    const auto sum = group->all_reduce_async(
        torch::from_blob(mine.data(), {5000}), ReduceOp::kSum);
    std::fill(mine.begin(), mine.end(), -1.0f);
    group->barrier();
    expect_equal(sum->wait(), torch::full({5000}, 3.0));
  });
}

TEST_P(Async, ResultsAreWrittenToOut) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto group = world();
    const auto x = rounding(rank, {500, 60}, at::kFloat);
    const auto whole = torch::full({3, 500, 60}, 7.0);
    const auto out = whole[1];
    const auto sum = group->all_reduce_async(x, ReduceOp::kSum, out);
    EXPECT_TRUE(sum->wait().is_alias_of(whole));
    expect_equal(whole[1], group->all_reduce(x, ReduceOp::kSum));
    EXPECT_EQ(whole[0].sum().item<double>(), 7.0 * 500 * 60);
    EXPECT_EQ(whole[2].sum().item<double>(), 7.0 * 500 * 60);

    const auto mine = group->reduce_scatter(x, 1, ReduceOp::kSum);
    const auto part = torch::full_like(mine, 7);
    group->reduce_scatter_async(x, 1, ReduceOp::kSum, part)->wait();
    expect_equal(part, mine);
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

TEST(AsyncCollectives, OfOneRankReturnTheInputItself) {
  const auto group = new_group({get_rank()}, "one");
  const auto x = torch::ones({2, 2});
  EXPECT_TRUE(group->all_reduce_async(x, ReduceOp::kSum)->wait().is_same(x));
  EXPECT_TRUE(group->all_gather_async(x, 0, 2)->wait().is_same(x));
  EXPECT_TRUE(group->shard_dim_alltoall_async(x, 0, 1)->wait().is_same(x));
  expect_equal(group->all_to_all_async(x, {4}, {4})->wait(), torch::ones({4}));
  const auto out = torch::zeros({2, 2});
  EXPECT_TRUE(group->reduce_scatter_async(x, 0, ReduceOp::kSum, out)
                  ->wait()
                  .is_same(out));
  expect_equal(out, x);
}

template <typename Error = c10::Error>
std::string on_two(const std::function<void(Group&, int64_t)>& fn) {
  return error_of<Error>([&] {
    run_ranks(2, [&](int64_t rank) { fn(*new_group({0, 1}, "tp"), rank); });
  });
}

TEST(AsyncErrors, NameTheCallsOfTheRanks) {
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t rank) {
        group.all_reduce_async(torch::ones({3 + rank}), ReduceOp::kSum)->wait();
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_reduce] ranks of "
      "\"tp\" disagree: rank 0 calls all_reduce of f32[3] with sum; rank 1 "
      "calls all_reduce of f32[4] with sum. Call the same collective with the "
      "same sizes on every rank.");
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t rank) {
        group.all_gather_async(torch::ones({3}), 0, 6 + rank)->wait();
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_gather] ranks of "
      "\"tp\" disagree: rank 0 calls all_gather of f32[3] along dim 0 to size "
      "6; rank 1 calls all_gather of f32[3] along dim 0 to size 7. Call the "
      "same collective with the same sizes on every rank.");
}

TEST(AsyncErrors, NameMismatchedSizes) {
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t) {
        group.all_gather_async(torch::ones({3}), 0, 7)->wait();
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_gather] the shards on "
      "\"tp\" have total size 6 along dim 0, expected 7. Pass the shard that "
      "the layout describes on every rank.");
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t) {
        group.all_reduce_async(
            torch::ones({3, 2}), ReduceOp::kSum, torch::ones({2, 3}).t());
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_reduce_async] `out`, "
      "f32[3, 2] (not contiguous), cannot take the result, f32[3, 2]. Pass a "
      "contiguous tensor of that shape and dtype.");
}

TEST(AsyncErrors, NameMismatchedCounts) {
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t) {
        group.all_to_all_async(torch::ones({3}), {1, 1}, {1, 1});
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_to_all_async] the "
      "counts do not fit f32[3] on \"tp\", which has 2 ranks: sent [1, 1], "
      "received [1, 1]. Pass one count per rank, adding up to the number of "
      "elements, and the same count for this rank itself in both.");
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t rank) {
        group
            .all_to_all_async(
                torch::ones({3 + rank}),
                rank == 0 ? Sizes{0, 3} : Sizes{4, 0},
                rank == 0 ? Sizes{0, 2} : Sizes{3, 0})
            ->wait();
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_to_all] ranks of "
      "\"tp\" disagree: rank 0 calls all_to_all of f32[0], f32[3] for [0], "
      "[2]; rank 1 calls all_to_all of f32[4], f32[0] for [3], [0]. Call the "
      "same collective with the same sizes on every rank.");
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t) {
        group.all_to_all_async(torch::ones({2, 3}).t(), {3, 3}, {3, 3});
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_to_all_async] "
      "`input`, f32[3, 2], is not contiguous. Pass a contiguous tensor.");
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
