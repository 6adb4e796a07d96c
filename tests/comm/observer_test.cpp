// SPDX-License-Identifier: BSD-3-Clause
// Events that observers receive: exact kinds, bytes and groups.
#include <dtensor/comm/observer.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace dtensor {
namespace TEST_SOURCE {

struct Recorder : CommObserver {
  void on_collective(const CollectiveEvent& event) override {
    lines.push_back(c10::str(
        to_string(event.kind),
        " payload ",
        event.payload_bytes,
        " wire ",
        event.wire_bytes,
        " of ",
        event.group_size,
        " on ",
        event.label));
  }
  std::vector<std::string> lines;
};

using Lines = std::vector<std::string>;

// Returns the events of ranks 0 and 3 of four while all ranks run `fn`.
std::pair<Lines, Lines> heard(const std::function<void(Group&)>& fn) {
  std::vector<Recorder> recorders(4);
  run_ranks(4, [&](int64_t rank) {
    const CommObserverGuard guard(recorders[static_cast<size_t>(rank)]);
    fn(*new_group({0, 1, 2, 3}, "tp"));
  });
  return {recorders[0].lines, recorders[3].lines};
}

TEST(Observer, HearsBandwidthOptimalBytes) {
  const auto both = [](const char* line) {
    return std::pair<Lines, Lines>{{line}, {line}};
  };
  const at::Tensor x = torch::ones({8, 4}); // 128 bytes
  EXPECT_EQ(
      heard([&](Group& g) { g.all_reduce(x, ReduceOp::kSum); }),
      both("all_reduce payload 128 wire 192 of 4 on tp"));
  EXPECT_EQ(
      heard([&](Group& g) { g.reduce_scatter(x, 0, ReduceOp::kSum); }),
      both("reduce_scatter payload 128 wire 96 of 4 on tp"));
  EXPECT_EQ(
      heard([&](Group& g) { g.all_gather(x, 1); }),
      both("all_gather payload 128 wire 384 of 4 on tp"));
  EXPECT_EQ(
      heard([&](Group& g) {
        g.all_to_all({x, x, x, x});
      }),
      both("all_to_all payload 512 wire 384 of 4 on tp"));
  EXPECT_EQ(
      heard([&](Group& g) { g.shard_dim_alltoall(x, 0, 1); }),
      both("all_to_all payload 128 wire 96 of 4 on tp"));
  EXPECT_EQ(
      heard([&](Group& g) { g.broadcast(x, 0); }),
      both("broadcast payload 128 wire 128 of 4 on tp"));
  EXPECT_EQ(
      heard([](Group& g) { g.barrier(); }),
      both("barrier payload 0 wire 0 of 4 on tp"));
}

TEST(Observer, HearsUnevenSizes) {
  // Rank r contributes r + 1 rows of 4 bytes, 40 bytes in all.
  EXPECT_EQ(
      heard([](Group& g) { g.all_gather(torch::ones({g.rank() + 1}), 0); }),
      (std::pair<Lines, Lines>{
          {"all_gather payload 4 wire 30 of 4 on tp"},
          {"all_gather payload 16 wire 30 of 4 on tp"}}));
  EXPECT_EQ(
      heard([](Group& g) {
        std::vector<at::Tensor> sent;
        for (int64_t to = 0; to < 4; ++to) {
          sent.push_back(torch::ones({to}));
        }
        g.all_to_all(sent);
      }),
      (std::pair<Lines, Lines>{
          {"all_to_all payload 24 wire 24 of 4 on tp"},
          {"all_to_all payload 24 wire 12 of 4 on tp"}}));
  // Rank 0 keeps two of the five columns, rank 3 none.
  EXPECT_EQ(
      heard([](Group& g) {
        g.shard_dim_alltoall(torch::ones({2, 5}), 0, 1);
      }),
      (std::pair<Lines, Lines>{
          {"all_to_all payload 40 wire 24 of 4 on tp"},
          {"all_to_all payload 40 wire 40 of 4 on tp"}}));
}

// Asynchronous collectives are observed when a rank enters them, even if the
// rank never waits for them.
TEST(Observer, HearsAsynchronousCollectivesAsTheSynchronousOnes) {
  const auto of_rank = [](const Group& g) {
    return torch::ones({g.rank() + 1, 5});
  };
  const auto sync = heard([&](Group& g) {
    g.all_reduce(torch::ones({8}), ReduceOp::kSum);
    g.all_gather(of_rank(g), 0);
    g.reduce_scatter(torch::ones({8}), 0, ReduceOp::kSum);
    g.shard_dim_alltoall(of_rank(g), 0, 1);
  });
  EXPECT_EQ(
      heard([&](Group& g) {
        g.all_reduce_async(torch::ones({8}), ReduceOp::kSum);
        g.all_gather_async(of_rank(g), 0, 10);
        g.reduce_scatter_async(torch::ones({8}), 0, ReduceOp::kSum);
        g.shard_dim_alltoall_async(of_rank(g), 0, 1);
      }),
      sync);
  EXPECT_EQ(sync.first.size(), 4);
}

// The result's size is unknown when the rank enters the collective, so it is
// estimated as if all shards were equal.
TEST(Observer, HearsAnAsynchronousAllGatherWithoutSizes) {
  const auto unsized = heard(
      [](Group& g) { g.all_gather_async(torch::ones({2}), 0, SizesRef()); });
  EXPECT_EQ(
      unsized, heard([](Group& g) { g.all_gather(torch::ones({2}), 0); }));
}

TEST(Observer, ReportsSendersAndReceivers) {
  const at::Tensor x = torch::ones({4}); // 16 bytes
  EXPECT_EQ(
      heard([&](Group& g) {
        const std::vector<at::Tensor> parts(g.rank() == 0 ? 4 : 0, x);
        g.scatter(parts, x, 0);
      }),
      (std::pair<Lines, Lines>{
          {"scatter payload 64 wire 48 of 4 on tp"},
          {"scatter payload 0 wire 0 of 4 on tp"}}));
  EXPECT_EQ(
      heard([&](Group& g) { g.gather(x, 0); }),
      (std::pair<Lines, Lines>{
          {"gather payload 16 wire 0 of 4 on tp"},
          {"gather payload 16 wire 16 of 4 on tp"}}));
  EXPECT_EQ(
      heard([&](Group& g) {
        if (g.rank() == 0) {
          g.send(x, 3);
        } else if (g.rank() == 3) {
          g.recv(x, 0);
        }
      }),
      (std::pair<Lines, Lines>{
          {"send payload 16 wire 16 of 4 on tp"},
          {"recv payload 0 wire 0 of 4 on tp"}}));
}

TEST(Observer, HearsNothingOfOneRankAndOfExchanges) {
  Recorder recorder;
  const CommObserverGuard guard(recorder);
  new_group({0}, "tp")->all_reduce(torch::ones({4}), ReduceOp::kSum);
  EXPECT_EQ(recorder.lines, Lines{});
  EXPECT_EQ(heard([](Group& g) { g.all_gather_strings("x"); }).first, Lines{});
}

TEST(Observer, NestsAndEndsWithItsGuard) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    Recorder outer;
    Recorder inner;
    const CommObserverGuard outer_guard(outer);
    {
      const CommObserverGuard inner_guard(inner);
      group->barrier();
    }
    group->barrier();
    EXPECT_EQ(outer.lines.size(), 2U);
    EXPECT_EQ(inner.lines.size(), 1U);
    EXPECT_EQ(detail::comm_observed(), true) << rank;
  });
  EXPECT_FALSE(detail::comm_observed());
}

TEST(Observer, WireOfAllReduceIsThatOfItsTwoHalves) {
  const at::Tensor x = torch::ones({12, 4});
  double all_reduce = 0;
  double halves = 0;
  struct Sum : CommObserver {
    explicit Sum(double& s) : sum(s) {}
    void on_collective(const CollectiveEvent& event) override {
      sum += event.wire_bytes;
    }
    double& sum;
  };
  run_ranks(3, [&](int64_t rank) {
    const GroupPtr group = new_group({0, 1, 2}, "tp");
    double unused = 0;
    Sum whole(rank == 0 ? all_reduce : unused);
    Sum parts(rank == 0 ? halves : unused);
    {
      const CommObserverGuard guard(whole);
      group->all_reduce(x, ReduceOp::kSum);
    }
    const CommObserverGuard guard(parts);
    group->all_gather(group->reduce_scatter(x, 0, ReduceOp::kSum), 0);
  });
  EXPECT_GT(halves, 0);
  EXPECT_DOUBLE_EQ(all_reduce, halves);
}

} // namespace TEST_SOURCE
} // namespace dtensor
