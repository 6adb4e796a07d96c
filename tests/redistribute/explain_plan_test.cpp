// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/testing/fake_world.h>
#include <tests/redistribute/layouts.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

TEST(ExplainPlan, ListsAlternatives) {
  const SpecPtr spec =
      parse_spec("f32[64, 64] on (dp=2, tp=2): S(0) P(sum)").spec();
  EXPECT_EQ(
      explain_plan(spec, spec->with_placements({Replicate(), Shard(0)})),
      R"(plan: 1 collective, 24576 bytes per rank, 4.4576 us
  pad dim 0 on "dp": S(0) P(sum) -> P(sum) P(sum)
  all_reduce on "dp", "tp": P(sum) P(sum) -> R R
  slice dim 0 on "tp": R R -> R S(0)
fewest collectives: 1 collective, 24576 bytes per rank, 4.4576 us, as above
fewest bytes: 2 collectives, 10240 bytes per rank, 5.024 us
  reduce_scatter dim 0 on "tp": S(0) P(sum) -> S(0) S(0)
  all_to_all dim 0 to 0 on "dp", "tp": S(0) S(0) -> R S(0)
one mesh dimension at a time: 2 collectives, 12288 bytes per rank, 5.2288 us
  all_reduce on "tp": S(0) P(sum) -> S(0) R
  all_to_all dim 0 to 0 on "dp": S(0) R -> R S(0))");
  EXPECT_EQ(
      explain_plan(spec, spec).substr(0, 63),
      "plan: 0 collectives, 0 bytes per rank, 0 us\n  nothing to do\nfew");
  const auto impossible = spec->with_placements({Shard(0), Partial("max")});
  EXPECT_THROW(explain_plan(spec, impossible), c10::ValueError);
}

struct Summary {
  double collectives, bytes, us;
};

// Returns the numbers of four plans: the chosen plan, and the plans with the
// fewest collectives, with the fewest bytes, and over one mesh dimension at a
// time.
std::vector<Summary> summaries(const SpecPtr& from, const SpecPtr& to) {
  const std::regex line(
      R"(: ([0-9]+) collectives?, ([^ ]+) bytes per rank, ([^ ,\n]+) us)");
  const std::string text = explain_plan(from, to);
  std::vector<Summary> all;
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end;
       ++it) {
    all.push_back(
        {std::stod(it->str(1)), std::stod(it->str(2)), std::stod(it->str(3))});
  }
  return all;
}

// Each of the four plans is the best by its own measure.
TEST(ExplainPlan, NoAlternativeIsBetterThanAnotherByItsMeasure) {
  constexpr double kRounding = 1 + 1e-5;
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(1), Partial("sum")};
  testing::with_fake_world(0, 8, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2, 2});
    for (const Sizes& sizes :
         {Sizes{8, 8},
          Sizes{5, 7},
          Sizes{4096, 4096},
          Sizes{1 << 17, 1 << 17}}) {
      for (const auto& [before, after] :
           testing::some_pairs(testing::all_layouts(3, kinds), 200)) {
        const auto from = Spec::make(mesh, before, sizes, at::kFloat);
        const auto to = Spec::make(mesh, after, sizes, at::kFloat);
        const auto all = summaries(from, to);
        ASSERT_EQ(all.size(), 4);
        for (const Summary& other : all) {
          const auto text = to_string(*from) + "\n" + explain_plan(from, to);
          EXPECT_LE(all[0].us, other.us * kRounding) << text;
          EXPECT_LE(all[1].collectives, other.collectives) << text;
          EXPECT_LE(all[2].bytes, other.bytes * kRounding) << text;
        }
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
