// SPDX-License-Identifier: BSD-3-Clause
// Redistributing local tensors gives the local tensors of a directly sharded
// full tensor.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <tests/redistribute/expect_right.h>
#include <tests/redistribute/layouts.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

namespace dtensor {
namespace TEST_SOURCE {

using dtensor::testing::all_layouts;
using dtensor::testing::all_pairs;
using dtensor::testing::cut_directly;
using dtensor::testing::expect_right;
using dtensor::testing::Pair;
using dtensor::testing::sends_unevenly;
using dtensor::testing::some_pairs;

// Options of a mesh on which even small tensors get the plans of the fewest
// bytes.
MeshOptions with_slow_bytes(size_t ndim) {
  MeshOptions options;
  for (size_t i = 0; i < ndim; ++i) {
    options.cost[std::to_string(i)] = {
        .latency_us = 0.001, .gigabytes_per_s = 1};
  }
  return options;
}

void expect_all_right(
    const std::vector<int64_t>& shape,
    const std::vector<Sizes>& all_sizes,
    const std::vector<Pair>& pairs,
    const MeshOptions& options = {}) {
  run_ranks(numel(shape), [&] {
    const auto mesh = init_device_mesh(at::kCPU, shape, {}, options);
    for (const Sizes& sizes : all_sizes) {
      for (const Pair& pair : pairs) {
        const auto from = Spec::make(mesh, pair.from, sizes, at::kDouble);
        const auto to = Spec::make(mesh, pair.to, sizes, at::kDouble);
        if (can_redistribute(from, to)) {
          expect_right(from, to);
        }
      }
    }
  });
}

const std::vector<Sizes>& odd_and_even_sizes() {
  static const std::vector<Sizes> sizes{
      {4, 6}, {5, 7}, {1, 3}, {6, 12}, {0, 4}};
  return sizes;
}

std::vector<Placement> every_kind() {
  return {
      Replicate(),
      Shard(0),
      Shard(1),
      Partial("sum"),
      Partial("avg"),
      Partial("max"),
      StridedShard(0, 2),
      StridedShard(0, 3),
      StridedShard(1, 2),
      StridedShard(1, 6),
      Shard(0, 2),
      Shard(1, 3),
      StridedShard(1, 2, 2)};
}

TEST(Execute, EveryPairOnOneMeshDim) {
  const auto pairs = all_pairs(all_layouts(1, every_kind()));
  expect_all_right({2}, odd_and_even_sizes(), pairs);
  expect_all_right({3}, odd_and_even_sizes(), pairs);
}

TEST(SlowExecute, EveryPairOnTwoByTwo) {
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(1), Partial("sum"), StridedShard(0, 2)};
  expect_all_right(
      {2, 2}, odd_and_even_sizes(), all_pairs(all_layouts(2, kinds)));
}

TEST(SlowExecute, EveryPairInUnitsOnTwoByTwo) {
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(0, 2), Shard(0, 3), Partial("sum")};
  expect_all_right({2, 2}, {{9, 2}, {6, 3}}, all_pairs(all_layouts(2, kinds)));
}

TEST(Execute, HeadsOnTwoToFiveRanks) {
  const std::vector<Placement> kinds{
      Replicate(),
      Shard(1),
      Shard(1, 64),
      Shard(1, 192),
      Shard(0),
      Partial("sum")};
  for (const int64_t ranks : {2, 3, 4, 5}) {
    expect_all_right({ranks}, {{4, 576}}, all_pairs(all_layouts(1, kinds)));
  }
}

TEST(SlowExecute, EveryPairOnTwoByThree) {
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(1), Partial("sum"), StridedShard(0, 3)};
  expect_all_right(
      {2, 3}, odd_and_even_sizes(), all_pairs(all_layouts(2, kinds)));
}

TEST(Execute, SomePairsOfEveryKind) {
  const auto pairs = some_pairs(all_layouts(2, every_kind()), 150);
  expect_all_right({2, 2}, odd_and_even_sizes(), pairs);
  expect_all_right({2, 3}, odd_and_even_sizes(), pairs);
  expect_all_right({3, 2}, {{12, 36}, {5, 7}}, pairs);
}

TEST(Execute, SomePairsOnThreeMeshDims) {
  std::vector<Placement> kinds = every_kind();
  kinds.push_back(StridedShard(0, 4));
  const auto pairs = some_pairs(all_layouts(3, kinds), 150);
  expect_all_right({2, 2, 2}, {{8, 16}, {5, 7}}, pairs);
  expect_all_right({2, 2, 2}, {{8, 16}, {5, 7}}, pairs, with_slow_bytes(3));
}

TEST(Execute, SomePairsOnFiveMeshDims) {
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(1), Shard(2), Partial("sum")};
  expect_all_right(
      {2, 2, 2, 2, 2},
      {{32, 4, 6}, {5, 3, 7}},
      some_pairs(all_layouts(5, kinds), 10));
}

// Collectives over mesh dimensions with different backends are not joined.
TEST(Execute, MeshDimsOfDifferentGroups) {
  MeshOptions options;
  options.backend_override["1"] = {.timeout = std::chrono::hours(1)};
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(1), Partial("sum")};
  expect_all_right({2, 2}, {{5, 4}}, all_pairs(all_layouts(2, kinds)), options);
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {}, options);
    const auto sums =
        Spec::make(mesh, {Partial(), Partial()}, {4, 4}, at::kDouble);
    const auto steps =
        plan(sums, sums->with_placements({Replicate(), Replicate()}))->steps;
    EXPECT_EQ(steps.size(), 2U);
  });
}

TEST(Execute, APlanIsExecutedAgainWithOtherValues) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (const Pair& pair : some_pairs(all_layouts(2, every_kind()), 60)) {
      const auto from = Spec::make(mesh, pair.from, {5, 12}, at::kDouble);
      const auto to = Spec::make(mesh, pair.to, {5, 12}, at::kDouble);
      for (const int64_t seed : {0, 100, 200}) {
        if (can_redistribute(from, to)) {
          expect_right(from, to, seed);
        }
      }
    }
  });
}

TEST(SlowExecute, EveryPairOnThreeMeshDims) {
  const auto pairs = all_pairs(
      all_layouts(3, {Replicate(), Shard(0), Shard(1), Partial("sum")}));
  expect_all_right({2, 2, 2}, {{5, 7}}, pairs);
}

TEST(Execute, FewestBytesOnTwoMeshDims) {
  const auto pairs = all_pairs(all_layouts(
      2,
      {Replicate(), Shard(0), Shard(1), Partial("avg"), StridedShard(0, 3)}));
  expect_all_right({2, 3}, {{6, 12}, {5, 7}}, pairs, with_slow_bytes(2));
}

// Sums and averages are reduced together.
TEST(Execute, MixedReductions) {
  const auto pairs = all_pairs(
      all_layouts(2, {Replicate(), Shard(1), Partial("sum"), Partial("avg")}));
  expect_all_right({2, 3}, {{6, 12}, {5, 7}}, pairs);
}

TEST(Execute, ShardOrders) {
  std::vector<Placements> layouts;
  for (const char* text :
       {"R R R",
        "S(0) S(0) S(0)",
        "SS(0, sf=2) S(0) S(0)",
        "SS(0, sf=4) S(0) S(0)",
        "SS(0, sf=4) SS(0, sf=2) S(0)",
        "SS(0, sf=2) SS(0, sf=2) S(0)",
        "S(0) SS(0, sf=2) S(0)",
        "S(0) SS(0, sf=4) S(0)",
        "SS(0, sf=2) R S(0)"}) {
    layouts.push_back(parse_placements(text));
  }
  expect_all_right({2, 2, 2}, {{8, 3}, {16, 4}, {12, 2}}, all_pairs(layouts));
}

template <typename MakeTerm>
void expect_round_trip(const char* op, at::Tensor full, MakeTerm check) {
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto whole = Spec::make(
        mesh, {Replicate()}, Sizes(full.sizes()), full.scalar_type());
    const auto partial = whole->with_placements({Partial(op)});
    const at::Tensor term = redistribute_local(full, whole, partial);
    check(term, mesh.get_local_rank());
    EXPECT_TRUE(torch::equal(redistribute_local(term, partial, whole), full))
        << op;
    const auto rows = whole->with_placements({Shard(0)});
    const at::Tensor part = cut_directly(full, *rows);
    const at::Tensor from_local_lazy = redistribute_local(part, rows, partial);
    EXPECT_TRUE(
        torch::equal(redistribute_local(from_local_lazy, partial, rows), part))
        << op;
  });
}

TEST(Execute, PartitionKeepsTheValueOnOneRankOrOnAll) {
  const auto numbers = torch::arange(8, torch::kLong).reshape({4, 2}) - 3;
  const auto expect_rest = [&](const at::Tensor& rest) {
    return [=](const at::Tensor& term, int64_t rank) {
      EXPECT_TRUE(torch::equal(term, rank == 0 ? numbers : rest));
    };
  };
  const auto zeros = torch::zeros_like(numbers);
  expect_round_trip("sum", numbers, expect_rest(zeros));
  expect_round_trip("bxor", numbers, expect_rest(zeros));
  expect_round_trip("product", numbers, expect_rest(zeros + 1));
  for (const char* op : {"min", "max", "band", "bor"}) {
    expect_round_trip(op, numbers, expect_rest(numbers));
  }
}

class Ledger : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    ++collectives;
    wire_bytes += event.wire_bytes;
  }
  int64_t collectives = 0;
  double wire_bytes = 0;
};

TEST(Execute, SendsTheBytesOfThePlan) {
  const auto pairs = all_pairs(all_layouts(
      2,
      {Replicate(), Shard(0), Shard(1), Partial("sum"), StridedShard(0, 2)}));
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (const Pair& pair : pairs) {
      const auto from = Spec::make(mesh, pair.from, {8, 8}, at::kFloat);
      const auto to = Spec::make(mesh, pair.to, {8, 8}, at::kFloat);
      const auto local = torch::ones(from->local_sizes());
      Ledger ledger;
      {
        CommObserverGuard guard(ledger);
        redistribute_local(local, from, to);
      }
      const auto steps = plan(from, to);
      EXPECT_EQ(ledger.collectives, steps->collectives());
      if (!sends_unevenly(steps->steps)) {
        EXPECT_DOUBLE_EQ(ledger.wire_bytes, steps->wire_bytes);
      }
    }
  });
}

TEST(Execute, MeshDimsOfSizeOneCommunicateNothing) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  const auto from = Spec::make(mesh, {Partial("sum")}, {4}, at::kFloat);
  const auto local = torch::arange(4, torch::kFloat);
  Ledger ledger;
  CommObserverGuard guard(ledger);
  const auto result =
      redistribute_local(local, from, from->with_placements({Shard(0)}));
  EXPECT_TRUE(result.is_same(local));
  EXPECT_EQ(ledger.collectives, 0);
}

TEST(Execute, TheResultOwnsItsMemory) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto from = Spec::make(mesh, {Replicate()}, {4, 4}, at::kFloat);
    const auto local = torch::ones({4, 4});
    for (const Placement& to : {Shard(0), Shard(1), Partial("max")}) {
      const auto result =
          redistribute_local(local, from, from->with_placements({to}));
      EXPECT_FALSE(result.is_alias_of(local)) << to_string(to);
      EXPECT_TRUE(result.is_contiguous());
      EXPECT_EQ(result.storage().nbytes(), result.nbytes());
    }
  });
}

TEST(Execute, RecordsNoGradient) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto from = Spec::make(mesh, {Shard(0)}, {4, 4}, at::kFloat);
    const auto local = torch::ones({2, 4}, torch::requires_grad());
    const auto result =
        redistribute_local(local, from, from->with_placements({Replicate()}));
    EXPECT_FALSE(result.requires_grad());
  });
}

TEST(Execute, RanksOutsideTheMeshGetAnEmptyTensor) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto from = Spec::make(mesh, {Shard(0)}, {4, 4}, at::kFloat);
    const auto local = rank < 2 ? torch::ones({2, 4}) : torch::ones({0});
    const auto result =
        redistribute_local(local, from, from->with_placements({Replicate()}));
    EXPECT_EQ(result.numel(), rank < 2 ? 16 : 0);
  });
}

TEST(Execute, LocalShardsAreStoredInStrideOrder) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto from = Spec::make(mesh, {Shard(0)}, {4, 6}, {1, 4}, at::kFloat);
    const auto whole = torch::arange(24.0).view({6, 4}).t().to(at::kFloat);
    const auto result = redistribute_local(
        whole.narrow(0, 2 * rank, 2), from, from->with_placements({Shard(1)}));
    EXPECT_TRUE(torch::equal(result, whole.narrow(1, 3 * rank, 3)));
    EXPECT_TRUE(result.t().is_contiguous());
  });
}

TEST(Execute, ALocalTensorOfAnotherShapeIsRefused) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  const auto from = Spec::make(mesh, {Shard(0)}, {4, 4}, at::kFloat);
  try {
    redistribute_local(torch::ones({2, 4}), from, from);
    FAIL() << "no error";
  } catch (const c10::ValueError& e) {
    EXPECT_STREQ(
        e.what_without_backtrace(),
        "[redistribute] the local tensor has shape [2, 4], but its layout "
        "gives this rank [4, 4]. Pass the local tensor that the layout "
        "describes.");
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
