// SPDX-License-Identifier: BSD-3-Clause
// Tests the order in which a value is redistributed to the layouts that its
// uses require.
#include <dtensor/dtensor.h>
#include <dtensor/program/operand_layouts_impl.h>
#include <dtensor/redistribute/plan.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace dtensor {
namespace TEST_SOURCE {

SpecPtr spec(int64_t ranks, const Placement& placement) {
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const DeviceMesh mesh(at::kCPU, {ranks}, std::move(all));
  return Spec::make(mesh, {placement}, {1200, 2400}, at::kFloat);
}

std::string route(
    int64_t ranks,
    const Placement& from,
    const std::vector<Placement>& wanted,
    bool both_ways = false) {
  std::vector<SpecPtr> specs;
  for (const auto& placement : wanted) {
    specs.push_back(spec(ranks, placement));
  }
  std::string text;
  for (const auto& to :
       detail::cheapest_route(spec(ranks, from), specs, both_ways)) {
    text += (text.empty() ? "" : ", ") + to_string(to->placements());
  }
  return text;
}

TEST(Routes, GatherFirstIfReplicatedLater) {
  EXPECT_EQ(route(3, Shard(0), {Shard(1), Replicate()}), "R, S(1)");
  EXPECT_EQ(route(3, Shard(0), {Replicate(), Shard(1)}), "R");
  EXPECT_EQ(route(3, Shard(0), {Shard(1)}), "S(1)");
  EXPECT_EQ(route(3, Shard(0), {Shard(1), Shard(1, 4)}), "S(1)");
}

// A value wanted both sharded and replicated is reduced once: the same bytes in
// one collective instead of two.
TEST(Routes, ReduceOnceForShardedAndReplicatedUses) {
  EXPECT_EQ(route(4, Partial(), {Shard(0), Replicate()}), "R, S(0)");
  EXPECT_EQ(route(4, Partial(), {Shard(0), Shard(1), Replicate()}), "R, S(0)");
  EXPECT_EQ(route(4, Partial(), {Shard(0)}), "S(0)");
}

// Costs of gradients count. If columns are sliced from a gathered value, their
// gradient is gathered. If columns are exchanged, their gradient is exchanged,
// which is cheaper on many ranks.
TEST(Routes, CountTheCostOfGradients) {
  EXPECT_EQ(route(2, Shard(0), {Shard(1), Replicate()}, true), "R, S(1)");
  EXPECT_EQ(route(3, Shard(0), {Shard(1), Replicate()}, true), "S(1)");
}

// Returns the modelled microseconds to make all layouts in `wanted`, one after
// the other, each from the nearest earlier layout. With `by_route`, the first
// layout is made by its route.

double time_of(
    const SpecPtr& from,
    const std::vector<SpecPtr>& wanted,
    bool by_route) {
  double sum = 0;
  std::vector<SpecPtr> made = {from};
  const auto bring = [&](const SpecPtr& to) {
    double least = redistribute_cost(from, to);
    for (const auto& other : made) {
      least = std::min(least, redistribute_cost(other, to));
    }
    sum += least;
    made.push_back(to);
  };
  for (const auto& to : wanted) {
    if (by_route && made.size() == 1) {
      for (const auto& step : detail::cheapest_route(from, wanted, false)) {
        bring(step);
      }
    } else if (std::find(made.begin(), made.end(), to) == made.end()) {
      bring(to);
    }
  }
  return sum;
}

TEST(Routes, NeverCostMoreThanSeparateRedistributions) {
  const std::vector<Placement> all = {
      Replicate(), Shard(0), Shard(1), Shard(0, 4), Shard(1, 8)};
  auto froms = all;
  froms.emplace_back(Partial());
  int fewer = 0;
  for (const int64_t ranks : {2, 3, 5}) {
    for (const auto& from : froms) {
      for (const auto& a : all) {
        for (const auto& b : all) {
          for (const auto& c : all) {
            std::vector<SpecPtr> wanted;
            for (const auto& placement : {a, b, c}) {
              const auto to = spec(ranks, placement);
              if (std::find(wanted.begin(), wanted.end(), to) == wanted.end()) {
                wanted.push_back(to);
              }
            }
            const auto chosen = time_of(spec(ranks, from), wanted, true);
            const auto greedy = time_of(spec(ranks, from), wanted, false);
            EXPECT_LE(chosen, greedy + 1e-9)
                << ranks << " ranks, from " << to_string(from) << " to "
                << to_string(a) << ", " << to_string(b) << ", " << to_string(c);
            fewer += chosen < greedy - 1e-9 ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(fewer, 100);
}

} // namespace TEST_SOURCE
} // namespace dtensor
