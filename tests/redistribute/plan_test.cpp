// SPDX-License-Identifier: BSD-3-Clause
// Plans as text, consistency of their steps, and errors of impossible plans.
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/redistribute/plan_impl.h>
#include <tests/redistribute/layouts.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using dtensor::testing::all_layouts;
using dtensor::testing::Pair;
using dtensor::testing::some_pairs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

SpecPtr spec_of(const std::string& text) {
  return parse_spec(text).spec();
}

SpecPtr to_layout(const SpecPtr& from, const std::string& placements) {
  return from->with_placements(parse_placements(placements));
}

std::string plan_text(const std::string& from, const std::string& to) {
  const SpecPtr spec = spec_of(from);
  return to_string(*plan(spec, to_layout(spec, to)), spec->mesh());
}

std::vector<StepKind> kinds(const std::string& from, const std::string& to) {
  const SpecPtr spec = spec_of(from);
  std::vector<StepKind> kinds;
  for (const Step& step : plan(spec, to_layout(spec, to))->steps) {
    kinds.push_back(step.kind);
  }
  return kinds;
}

template <typename Function>
std::string value_error(Function function) {
  try {
    function();
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "no ValueError";
}

TEST(Plan, OneMeshDimChangesByOneStep) {
  const std::string on = "f32[6, 4] on (tp=2): ";
  EXPECT_EQ(
      plan_text(on + "S(0)", "R"), "all_gather dim 0 on \"tp\": S(0) -> R");
  EXPECT_EQ(plan_text(on + "R", "S(1)"), "slice dim 1 on \"tp\": R -> S(1)");
  EXPECT_EQ(plan_text(on + "P(max)", "R"), "all_reduce on \"tp\": P(max) -> R");
  EXPECT_EQ(
      plan_text(on + "P(sum)", "S(0)"),
      "reduce_scatter dim 0 on \"tp\": P(sum) -> S(0)");
  EXPECT_EQ(
      plan_text(on + "S(0)", "S(1)"),
      "all_to_all dim 0 to 1 on \"tp\": S(0) -> S(1)");
  EXPECT_EQ(plan_text(on + "R", "P(avg)"), "partition on \"tp\": R -> P(avg)");
  EXPECT_EQ(
      plan_text(on + "S(0)", "P(sum)"), "pad dim 0 on \"tp\": S(0) -> P(sum)");
  EXPECT_EQ(
      plan_text(on + "SS(0, sf=3)", "S(0)"),
      "all_to_all dim 0 to 0 on \"tp\": SS(0, sf=3) -> S(0)");
  EXPECT_EQ(
      plan_text(on + "P(sum)", "SS(0, sf=3)"),
      "reduce_scatter dim 0 on \"tp\": P(sum) -> SS(0, sf=3)");
}

TEST(Plan, OneMeshDimSometimesTakesTwoSteps) {
  // max has no neutral element for padding in every dtype.
  EXPECT_THAT(
      kinds("f32[6, 4] on (tp=2): S(0)", "P(max)"),
      ElementsAre(StepKind::kAllGather, StepKind::kPartition));
}

// The numbers of collectives that PyTorch's own tests expect, or fewer.
TEST(Plan, JoinsMeshDims) {
  struct Case {
    const char* from;
    const char* to;
    int64_t collectives;
  };
  for (const Case& c : {
           Case{"f32[4, 4] on (2, 2): P(sum) P(sum)", "R R", 1},
           Case{"f32[4, 4] on (2, 2): P(sum) P(sum)", "S(0) S(0)", 1},
           Case{"f32[4, 4] on (2, 2): S(0) S(0)", "R R", 1},
           Case{"f32[4, 4] on (2, 2): S(0) S(1)", "R R", 1},
           Case{"f32[8, 8] on (2, 2, 2): P(sum) P(sum) P(sum)", "R R R", 1},
           Case{"f32[8, 8] on (2, 2, 2): P(avg) P(avg) P(sum)", "R R R", 1},
           Case{"f32[8, 8] on (2, 2, 2): P(max) P(max) P(max)", "R R R", 1},
           Case{"f32[8, 8] on (2, 2, 2): P(sum) S(0) P(sum)", "R R R", 1},
           Case{"f32[8, 8] on (2, 2, 2): P(max) S(0) P(max)", "R R R", 2},
           Case{"f32[8, 8] on (2, 2): S(0) S(1)", "S(1) S(0)", 1},
           Case{"f32[8, 8] on (2, 2, 2): S(0) S(0) S(0)", "S(1) S(1) S(1)", 1},
           Case{
               "f32[8, 8, 8] on (2, 2, 2): S(0) S(1) S(2)",
               "S(2) S(1) S(0)",
               1},
           Case{"f32[8, 8] on (2, 2): R S(0)", "S(0) S(0)", 1},
           // For 64 MB, more collectives that send fewer bytes are faster.
           Case{"f32[4096, 4096] on (2, 2): R S(0)", "S(0) S(0)", 1},
           Case{"f32[4096, 4096] on (2, 2): S(0) P(sum)", "R S(0)", 2},
       }) {
    const SpecPtr from = spec_of(c.from);
    const auto found = plan(from, to_layout(from, c.to));
    EXPECT_EQ(found->collectives(), c.collectives)
        << to_string(*found, from->mesh());
  }
}

TEST(Plan, ReduceScatterReachesUnevenStridedShards) {
  // 7 elements cannot be split into 4 blocks with 2 equal shards each.
  EXPECT_THAT(
      kinds("f32[7] on (tp=2): P(sum)", "SS(0, sf=4)"),
      ElementsAre(StepKind::kReduceScatter));
}

TEST(Plan, NoNamesNoQuotes) {
  EXPECT_EQ(
      plan_text("f32[6] on (2, 2): R S(0)", "R R"),
      "all_gather dim 0 on mesh dim 1: R S(0) -> R R");
}

TEST(Plan, TheSameLayoutIsNothingToDo) {
  EXPECT_EQ(
      plan_text("f32[6, 4] on (dp=2, tp=2): S(0) P(sum)", "S(0) P(sum)"),
      "nothing to do");
}

TEST(Plan, MeshDimsOfSizeOneTakeNoStep) {
  EXPECT_EQ(plan_text("f32[6] on (tp=1): P(sum)", "S(0)"), "nothing to do");
  EXPECT_EQ(plan_text("f32[6] on (tp=1): P(sum)", "P(max)"), "nothing to do");
  EXPECT_EQ(
      plan_text("f32[6, 4] on (dp=1, tp=2): P(sum) S(0)", "S(0) S(1)"),
      "all_to_all dim 0 to 1 on \"tp\": S(0) S(0) -> S(0) S(1)");
}

// The documentation claims "never gather when an all-to-all suffices".
TEST(Plan, SwappingDimsNeverGathers) {
  for (const char* from :
       {"f32[8, 8] on (2, 2): S(0) S(1)",
        "f32[8, 8] on (2, 4): S(0) S(1)",
        "f32[8, 8, 8] on (2, 2): S(0) S(1)"}) {
    const auto steps = kinds(from, "S(1) S(0)");
    EXPECT_THAT(steps, Not(Contains(StepKind::kAllGather))) << from;
    EXPECT_THAT(steps, Contains(StepKind::kAllToAll)) << from;
  }
}

TEST(Plan, GatherThenReduceScatterBeatsAllReduce) {
  const SpecPtr from = spec_of("f32[512, 512] on (dp=2, tp=2): S(0) P(sum)");
  const auto found = plan(from, to_layout(from, "R S(0)"));
  // Gathering and scattering the full 1 MiB would cost 512 + 512 KiB.
  EXPECT_LT(found->wire_bytes, 1 << 20);
  for (const Step& step : found->steps) {
    EXPECT_NE(step.kind, StepKind::kAllReduce);
  }
}

TEST(Plan, AStridedShardLeftOfItsEvenCutsWasAppliedLast) {
  const std::string on = "f32[6, 4] on (dp=2, tp=3): ";
  EXPECT_EQ(
      plan_text(on + "SS(0, sf=3) S(0)", "R S(0)"),
      "all_gather dim 0 on \"dp\": SS(0, sf=3) S(0) -> R S(0)");
  EXPECT_EQ(
      plan_text(on + "R S(0)", "SS(0, sf=3) S(0)"),
      "slice dim 0 on \"dp\": R S(0) -> SS(0, sf=3) S(0)");
}

TEST(Plan, AnUnevenStridedShardIsUndoneIfItsGroupHoldsTheRest) {
  // Rank 0 of "dp" has rows 0, 1, 3, 4 and 6. "tp" shards them as 0, 1, then 3,
  // 4, then 6. These are parts of the blocks of R S(0).
  EXPECT_EQ(
      plan_text("f32[7] on (dp=2, tp=3): SS(0, sf=3) S(0)", "R S(0)"),
      "all_gather dim 0 on \"dp\": SS(0, sf=3) S(0) -> R S(0)");
  // In this case it has rows 0, 2, 4 and 6, and rank 1 of "tp" has none of row
  // 5.
  EXPECT_EQ(
      plan_text("f32[7] on (dp=2, tp=3): SS(0, sf=4) S(0)", "R S(0)"),
      "all_to_all dim 0 to 0 on \"dp\", \"tp\": SS(0, sf=4) S(0) -> R S(0)");
}

TEST(Plan, ReplicateAndPartialOnBothSidesAreLeftAlone) {
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{
           {"f32[8, 8] on (dp=4, tp=2): P(sum) R", "R R"},
           {"f32[8, 8] on (dp=4, tp=4): P(sum) P(sum)", "P(sum) R"}}) {
    EXPECT_THAT(kinds(from, to), ElementsAre(StepKind::kAllReduce)) << from;
  }
}

// Checks plans between layouts of a tensor. Each step must start where the
// previous step ended.
void expect_steps_follow(const SpecPtr& spec, const std::vector<Pair>& pairs) {
  for (const Pair& pair : pairs) {
    const SpecPtr from = spec->with_placements(pair.from);
    const SpecPtr to = spec->with_placements(pair.to);
    if (!can_redistribute(from, to)) {
      EXPECT_THROW(plan(from, to), c10::ValueError);
      EXPECT_EQ(
          redistribute_cost(from, to), std::numeric_limits<double>::infinity());
      continue;
    }
    Placements at = pair.from;
    for (size_t i = 0; i < at.size(); ++i) {
      at[i] = spec->mesh().shape()[i] == 1 ? pair.to[i] : at[i];
    }
    for (const Step& step : plan(from, to)->steps) {
      EXPECT_EQ(step.before, at);
      for (size_t i = 0; i < at.size(); ++i) {
        const auto& dims = step.mesh_dims;
        const bool may_change =
            std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) !=
            dims.end();
        const bool is_sliced = step.kind == StepKind::kAllToAll &&
            at[i].is_replicate() && step.after[i].is_sharded();
        EXPECT_TRUE(may_change || is_sliced || step.after[i] == at[i]);
      }
      at = step.after;
    }
    EXPECT_EQ(at, pair.to) << to_string(*from) << " to " << to_string(*to);
  }
}

TEST(Plan, StepsFollowOneAnother) {
  const std::vector<Placement> choices{
      Replicate(),
      Shard(0),
      Shard(1),
      Partial("sum"),
      Partial("avg"),
      Partial("max"),
      StridedShard(0, 3)};
  for (const char* const layout :
       {"f32[6, 4] on (2, 3): R R",
        "f32[5, 4] on (2, 3): R R",
        "f32[0, 4] on (2, 3): R R",
        "f32[5, 4] on (3, 1): R R",
        "f32[5, 4] on (1, 3): R R",
        "f32[5, 4] on (2, 1, 3): R R R",
        "f32[1, 1] on (2, 2, 1): R R R"}) {
    const auto spec = spec_of(layout);
    expect_steps_follow(
        spec,
        some_pairs(all_layouts(spec->placements().size(), choices), 2401));
  }
}

// The planner considers fewer layouts of a mesh of many dimensions.
TEST(Plan, StepsFollowOneAnotherOnManyMeshDims) {
  const std::vector<Placement> choices{
      Replicate(), Shard(0), Shard(1), Shard(2), Partial("sum")};
  const auto pairs_of = [&](size_t ndim, size_t count) {
    std::mt19937 random(3);
    std::vector<Pair> pairs(count);
    for (Pair& pair : pairs) {
      for (size_t i = 0; i < ndim; ++i) {
        pair.from.push_back(choices[random() % choices.size()]);
        pair.to.push_back(choices[random() % choices.size()]);
      }
    }
    return pairs;
  };
  expect_steps_follow(
      spec_of("f32[32, 6, 5] on (2, 2, 2, 2): R R R R"), pairs_of(4, 60));
  expect_steps_follow(
      spec_of("f32[128, 6, 5] on (2, 2, 2, 2, 2, 2): R R R R R R"),
      pairs_of(6, 20));
  expect_steps_follow(
      spec_of("f32[7, 128, 256] on (2, 2, 2, 2, 2, 2, 2): R R R R R R R"),
      pairs_of(7, 10));
}

TEST(Plan, EveryRankPlansTheSame) {
  const std::string text = "f32[5, 3] on (2, 3): S(0) P(sum)";
  for (int64_t rank = 0; rank < 6; ++rank) {
    const SpecPtr from = parse_spec(text).spec(rank);
    const SpecPtr first = parse_spec(text).spec(0);
    const auto mine = plan(from, to_layout(from, "S(1) S(0)"));
    const auto its = plan(first, to_layout(first, "S(1) S(0)"));
    EXPECT_EQ(mine->steps, its->steps);
    EXPECT_EQ(mine->wire_bytes, its->wire_bytes);
  }
}

TEST(Plan, OtherReductionsAreRefused) {
  const SpecPtr from = spec_of("f32[6] on (dp=2, tp=2): R P(sum)");
  EXPECT_EQ(
      value_error([&] { plan(from, to_layout(from, "R P(max)")); }),
      "[redistribute] cannot go from [P(sum)] to [P(max)] on mesh dim \"tp\": "
      "the reductions differ. Redistribute to Replicate first.");
  EXPECT_FALSE(can_redistribute(from, to_layout(from, "R P(max)")));
}

TEST(Plan, ReductionsOnOtherMeshDimsMayDiffer) {
  EXPECT_THAT(
      kinds("f32[6] on (dp=2, tp=2): P(sum) R", "R P(max)"),
      ElementsAre(StepKind::kAllReduce, StepKind::kPartition));
  EXPECT_THAT(
      kinds("f32[6] on (dp=2, tp=2): P(sum) R", "R P(product)"),
      ElementsAre(StepKind::kSlice, StepKind::kAllReduce, StepKind::kPad));
}

TEST(Plan, OtherTensorsAreRefused) {
  const SpecPtr from = spec_of("f32[6] on (dp=2): R");
  EXPECT_EQ(
      value_error([&] { plan(from, spec_of("f32[6] on (tp=2): R")); }),
      "[redistribute] the meshes differ: (dp=2) and (tp=2). Gather with "
      "full_tensor() and distribute the result on the other mesh.");
  EXPECT_EQ(
      value_error([&] { plan(from, spec_of("f32[6, 1] on (dp=2): R")); }),
      "[redistribute] the global sizes differ: [6] and [6, 1]. Only the "
      "placements of a tensor can change.");
  EXPECT_EQ(
      value_error([&] { plan(from, spec_of("bf16[6] on (dp=2): R")); }),
      "[redistribute] the dtypes differ: f32 and bf16. Convert the tensor "
      "first, then redistribute it.");
}

TEST(PlanCache, RemembersAPair) {
  const SpecPtr from = spec_of("f32[6, 4] on (2): S(0)");
  const SpecPtr to = to_layout(from, "R");
  EXPECT_EQ(plan(from, to), plan(from, to));
}

TEST(PlanCache, IsBounded) {
  const SpecPtr from = spec_of("f32[6, 4] on (2): S(0)");
  for (int64_t size = 0; size < 4000; ++size) {
    const Sizes sizes{size, 2};
    const auto strides = dtensor::contiguous_strides(sizes);
    plan(
        from->with_tensor({Shard(0)}, sizes, strides),
        from->with_tensor({Replicate()}, sizes, strides));
  }
  EXPECT_LE(detail::cached_plans(), detail::plan_cache_capacity());
  EXPECT_GT(detail::cached_plans(), detail::plan_cache_capacity() / 2);
}

// The file tests/golden/plans.txt holds cases of a name, a layout, a target and
// the expected plan. To add a case, write its first three lines. To accept new
// plans, run this test with DTENSOR_UPDATE_GOLDEN=1.
std::filesystem::path golden_file() {
  return std::filesystem::path(DTENSOR_TESTS_DIR) / "golden" / "plans.txt";
}

std::string golden_case(
    const std::string& name,
    const std::string& from,
    const std::string& to) {
  const SpecPtr spec = spec_of(from);
  const auto found = plan(spec, to_layout(spec, to));
  std::ostringstream text;
  text << name << '\n' << from << "\n-> " << to << '\n';
  std::istringstream lines(to_string(*found, spec->mesh()));
  for (std::string line; std::getline(lines, line);) {
    text << "  " << line << '\n';
  }
  text << "  sends " << found->wire_bytes << " bytes in "
       << found->collectives() << " collectives\n";
  return text.str();
}

TEST(Plan, GoldenTexts) {
  std::ifstream file(golden_file());
  ASSERT_TRUE(file) << golden_file();
  std::ostringstream expected;
  std::ostringstream actual;
  int cases = 0;
  std::string line;
  while (std::getline(file, line)) {
    expected << line << '\n';
    if (!line.starts_with("case ")) {
      if (line.empty() || line.starts_with('#')) {
        actual << line << '\n';
      }
      continue;
    }
    std::string from;
    std::string to;
    std::getline(file, from);
    std::getline(file, to);
    expected << from << '\n' << to << '\n';
    ASSERT_TRUE(to.starts_with("-> ")) << line;
    actual << golden_case(line, from, to.substr(3));
    ++cases;
  }
  EXPECT_GE(cases, 30);
  if (std::getenv("DTENSOR_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden_file()) << actual.str();
    return;
  }
  EXPECT_EQ(actual.str(), expected.str());
}

} // namespace TEST_SOURCE
} // namespace dtensor
