// SPDX-License-Identifier: BSD-3-Clause
// Plans cost as much as the best path of an independent exhaustive search. The
// search does not use the notion of a last sharding, but compares the elements
// of every rank.
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/layouts_impl.h>
#include <dtensor/redistribute/least_time_impl.h>
#include <dtensor/redistribute/plan_impl.h>
#include <dtensor/testing/fake_world.h>
#include <tests/redistribute/exhaustive.h>
#include <tests/redistribute/layouts.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using dtensor::testing::all_layouts;
using dtensor::testing::Cost;
using dtensor::testing::Exhaustive;

// Costs with which few bytes on these meshes cost little compared with a
// collective, or much.
constexpr LinkCost kSlowStart{2, 10};
constexpr LinkCost kSlowBytes{0.001, 1};

TEST(Cost, OfAPlan) {
  const SpecPtr from = parse_spec("f32[8, 6] on (tp=2): P(sum)").spec();
  const auto bytes = [&](const Placement& to) {
    return plan(from, from->with_placements({to}))->wire_bytes;
  };
  const auto cost = [&](const Placement& to) {
    return redistribute_cost(from, from->with_placements({to}));
  };
  EXPECT_DOUBLE_EQ(
      bytes(Replicate()), wire_bytes(CollectiveKind::kAllReduce, 2, 8 * 6 * 4));
  EXPECT_DOUBLE_EQ(
      bytes(Shard(1)),
      wire_bytes(CollectiveKind::kReduceScatter, 2, 8 * 6 * 4));
  // 2 us, and 192 bytes at 10 bytes per ns.
  EXPECT_DOUBLE_EQ(cost(Replicate()), 2.0192);
  EXPECT_DOUBLE_EQ(cost(Partial("sum")), 0);
  EXPECT_EQ(cost(Partial("min")), std::numeric_limits<double>::infinity());
}

TEST(Cost, CountsTheLargestPart) {
  // The shards have 2, 2 and 1 elements.
  const SpecPtr from = parse_spec("f64[5] on (tp=3): S(0)").spec(2);
  EXPECT_DOUBLE_EQ(
      plan(from, from->with_placements({Replicate()}))->wire_bytes,
      wire_bytes(CollectiveKind::kAllGather, 3, 5 * 8));
}

// Calls `check` with a mesh of `shape` whose dimensions have these costs.
template <typename Check>
void on_mesh(
    const std::vector<int64_t>& shape,
    const std::vector<LinkCost>& links,
    Check check) {
  testing::with_fake_world(0, numel(shape), [&] {
    MeshOptions options;
    for (size_t i = 0; i < links.size(); ++i) {
      options.cost[std::to_string(i)] = links[i];
    }
    check(init_device_mesh(at::kCPU, shape, {}, options));
  });
}

int64_t picoseconds_of(const Plan& plan) {
  return std::llround(plan.microseconds * 1e6);
}

// Returns the lower bound of paths from one layout to another.
int64_t least_time(const Spec& from, const Spec& to) {
  const auto shape = from.mesh().shape();
  return detail::LeastTime(
             {from.sizes(), shape},
             static_cast<int64_t>(c10::elementSize(from.dtype())),
             detail::Links(from.mesh()).fastest(shape))
      .between(from.placements(), to.placements())
      .least();
}

// Checks the plans between layouts of `kinds`, every `stride`th pair, against
// an exhaustive search through all these layouts. The search passes through
// Partial only if an end of the path is Partial. StridedShards are those that
// plans pass through. The costs must be equal.
void expect_cheapest(
    const Sizes& sizes,
    const std::vector<int64_t>& shape,
    const std::vector<LinkCost>& links,
    const std::vector<Placement>& kinds,
    size_t stride = 1) {
  on_mesh(shape, links, [&](const DeviceMesh& mesh) {
    const Exhaustive search(mesh, sizes, links, kinds);
    const size_t count = search.layouts().size();
    int64_t pairs = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto with_partial = search.from(i, true);
      const auto without_partial = search.from(i, false);
      for (size_t j = i % stride; j < count; j += stride, ++pairs) {
        const SpecPtr& from = search.layouts()[i];
        const SpecPtr& to = search.layouts()[j];
        const bool may_sum = search.has_partial(i) || search.has_partial(j);
        const auto& best = may_sum ? with_partial : without_partial;
        const auto found = plan(from, to);
        const Cost cost{picoseconds_of(*found), found->collectives()};
        const std::string text = to_string(*from) + " to " +
            to_string(to->placements()) + "\n" + to_string(*found, mesh);
        EXPECT_LE(least_time(*from, *to), cost.first) << text;
        EXPECT_EQ(cost, best.costs[j])
            << text << "\ncheapest: " << search.text_of(best, i, j);
      }
    }
    EXPECT_GT(pairs, 200);
  });
}

std::vector<Placement> kinds(const std::vector<Placement>& more) {
  std::vector<Placement> all{Replicate(), Shard(0), Shard(1), Partial("sum")};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Cost, PlansAreCheapestOnTwoByTwo) {
  const auto all = kinds({StridedShard(0, 2), StridedShard(1, 2)});
  for (const LinkCost& link : {kSlowStart, kSlowBytes}) {
    expect_cheapest({8, 16}, {2, 2}, {link, link}, all);
    expect_cheapest({5, 7}, {2, 2}, {link, link}, kinds({}));
  }
  expect_cheapest({8, 16}, {2, 2}, {kSlowStart, kSlowBytes}, all);
  expect_cheapest({8, 16}, {2, 2}, {{1, 0.1}, {1, 10}}, all);
}

// Plans are cheapest for layouts with units mixed with plain shards.
TEST(Cost, PlansAreCheapestInUnits) {
  for (const LinkCost& link : {kSlowStart, kSlowBytes}) {
    expect_cheapest(
        {9, 8}, {2, 2}, {link, link}, kinds({Shard(0, 3), StridedShard(1, 2)}));
    expect_cheapest({15, 2}, {2, 2}, {link, link}, kinds({Shard(0, 3)}));
  }
}

// Four ranks hold 2, 2, 2 and 0 rows, and two ranks can halve the rows.
TEST(Cost, PlansAreCheapestWithEmptyShards) {
  for (const LinkCost& link : {kSlowStart, kSlowBytes}) {
    expect_cheapest({6, 1}, {2, 4}, {link, link}, kinds({StridedShard(0, 4)}));
    expect_cheapest({1, 6}, {2, 4}, {link, link}, kinds({StridedShard(1, 4)}));
  }
}

TEST(Cost, PlansAreCheapestOnTwoByThree) {
  for (const LinkCost& link : {kSlowStart, kSlowBytes}) {
    expect_cheapest({18, 4}, {2, 3}, {link, link}, kinds({StridedShard(0, 3)}));
    expect_cheapest({5, 7}, {2, 3}, {link, link}, kinds({}));
    expect_cheapest({9, 2}, {2, 3}, {link, link}, kinds({}));
  }
}

TEST(Cost, PlansAreCheapestOnThreeDims) {
  const auto all = kinds(
      {StridedShard(0, 2),
       StridedShard(1, 2),
       StridedShard(0, 4),
       StridedShard(1, 4)});
  for (const LinkCost& link : {kSlowStart, kSlowBytes}) {
    expect_cheapest({8, 16}, {2, 2, 2}, {link, link, link}, all, 3);
  }
  expect_cheapest(
      {13, 9}, {2, 3, 2}, {kSlowBytes, kSlowBytes, kSlowBytes}, kinds({}), 1);
  expect_cheapest(
      {12, 9},
      {2, 3, 2},
      {kSlowStart, kSlowBytes, kSlowStart},
      kinds({StridedShard(0, 2), StridedShard(0, 6)}),
      1);
}

// Searches are fast if the bound of the best path is its cost, except for
// rounding.
TEST(Cost, IsTheLeastTimeIfOneCollectiveSuffices) {
  constexpr int64_t kRounding = 2;
  const std::vector<std::pair<const char*, const char*>> layouts{
      {"S(0) S(0)", "R R"},
      {"P(sum) P(sum)", "R R"},
      {"P(sum) P(sum)", "S(0) S(1)"},
      {"S(0) S(1)", "S(1) S(0)"},
      {"R S(0)", "S(0) S(0)"},
      {"S(0) S(0)", "R S(0)"},
      {"S(0) P(sum)", "S(0) S(0)"},
      {"P(sum) P(sum)", "S(0) P(sum)"},
      {"S(0) P(sum)", "S(1) P(sum)"},
      {"S(0) P(sum)", "R P(sum)"}};
  for (const auto& [before, after] : layouts) {
    const std::string tensor = "f32[64, 64] on (2, 4): ";
    const SpecPtr from = parse_spec(tensor + before).spec();
    const SpecPtr to = from->with_placements(parse_placements(after));
    const auto found = plan(from, to);
    EXPECT_EQ(found->collectives(), 1) << before << " to " << after;
    EXPECT_LE(picoseconds_of(*found) - least_time(*from, *to), kRounding)
        << before << " to " << after;
  }
}

TEST(Cost, OfAMeshOfOneRankIsFinite) {
  const SpecPtr spec = parse_spec("f32[4] on (1, 1): R R").spec();
  const auto& mesh = spec->mesh();
  EXPECT_EQ(detail::Links(mesh).fastest(mesh.shape()), LinkCost());
}

// Exchanges from a layout are tried again if the layout is reached at less
// cost, or if other mesh dimensions split other blocks.
TEST(Cost, TriesExchangesOnce) {
  const SpecPtr spec = parse_spec("f32[8, 8] on (2, 2): S(0) S(0)").spec();
  const auto from = spec->placements();
  const Placements to = parse_placements("S(1) S(0)");
  const detail::Links links(spec->mesh());
  const detail::Frame frame{spec->sizes(), spec->mesh().shape()};
  const detail::SearchSpace space{
      frame, links, 4, detail::options_between(frame, from, to)};
  const auto sets =
      detail::joinable_sets(space, detail::movable_dims(space.options));
  detail::Layouts layouts(space);
  detail::TriedExchanges tried(sets, layouts);
  const auto add = [&](const char* layout, size_t set, int64_t time, bool all) {
    return tried.add(
        layouts.number_of(parse_placements(layout)), set, {time, 1, 1}, all);
  };
  constexpr size_t kFirst = 0; // the set of mesh dimension 0
  constexpr size_t kBoth = 2;
  EXPECT_TRUE(add("S(0) S(0)", kFirst, 9, false));
  EXPECT_TRUE(add("S(1) S(0)", kFirst, 9, false)); // other blocks on 1
  EXPECT_FALSE(add("SS(0, sf=2) S(0)", kFirst, 9, false));
  EXPECT_TRUE(add("SS(0, sf=2) S(0)", kFirst, 9, true));
  EXPECT_FALSE(add("S(1) S(0)", kFirst, 9, true));
  EXPECT_TRUE(add("S(1) S(0)", kFirst, 8, true));
  EXPECT_TRUE(add("S(1) S(0)", kBoth, 9, true));
  EXPECT_FALSE(add("S(0) S(1)", kBoth, 9, true));
}

// Returns the number of triples of layouts whose detour costs less.
int64_t count_shorter_detours(const DeviceMesh& mesh, const Sizes& sizes) {
  std::vector<SpecPtr> specs;
  for (const auto& layout : all_layouts(3, kinds({}))) {
    specs.push_back(Spec::make(mesh, layout, sizes, at::kFloat));
  }
  const size_t count = specs.size();
  std::vector<int64_t> costs;
  for (const auto& from : specs) {
    for (const auto& to : specs) {
      costs.push_back(picoseconds_of(*plan(from, to)));
    }
  }
  int64_t shorter = 0;
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      for (size_t c = 0; c < count; ++c) {
        shorter +=
            costs[a * count + c] > costs[a * count + b] + costs[b * count + c]
            ? 1
            : 0;
      }
    }
  }
  EXPECT_EQ(count * count * count, 262144);
  return shorter;
}

TEST(Cost, ObeysTheTriangleInequality) {
  for (const LinkCost& link : {kSlowStart, kSlowBytes}) {
    for (const int64_t n : {2, 4}) {
      on_mesh({n, n, n}, {link, link, link}, [&](const DeviceMesh& mesh) {
        for (const Sizes& sizes :
             {Sizes{8, 8}, Sizes{64, 64}, Sizes{4096, 4096}, Sizes{5, 7}}) {
          EXPECT_EQ(count_shorter_detours(mesh, sizes), 0)
              << n << ": " << sizes;
        }
      });
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
