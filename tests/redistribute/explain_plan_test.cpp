// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan.h>

#include <gtest/gtest.h>

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

} // namespace TEST_SOURCE
} // namespace dtensor
