// SPDX-License-Identifier: BSD-3-Clause
// Tests the example's GPT, with layouts, rules, styles, randomness and
// gradients together. Every run is compared with the run on one rank.
#include "examples/gpt/trainer.h"

#include <gtest/gtest.h>

namespace gpt {
namespace TEST_SOURCE {

Options small() {
  Options options;
  options.model = {
      .vocab = 0,
      .block = 12,
      .layers = 2,
      .heads = 12,
      .width = 48,
      .dropout = 0.1};
  options.steps = 5;
  options.batch = 3;
  options.dtype = torch::kDouble;
  options.seed = 11;
  return options;
}

Text words() {
  Text text;
  text.alphabet = "abcdefghijklmnopq"; // 17 is a prime number
  text.ids = torch::randint(
      text.vocab(), {400}, at::detail::createCPUGenerator(3), torch::kLong);
  return text;
}

Result run(Options options, int64_t ranks, Parallel parallel) {
  const auto text = words();
  options.model.vocab = text.vocab();
  options.ranks = ranks;
  options.parallel = parallel;
  return train(options, text);
}

class Gpt : public ::testing::TestWithParam<std::tuple<int64_t, bool, bool>> {};

TEST_P(Gpt, TrainsAsOnOneRankWithTheExpectedCollectives) {
  const auto [ranks, sequence, loss] = GetParam();
  const Parallel parallel{sequence, loss};
  const auto alone = run(small(), 1, {});
  const auto result = run(small(), ranks, parallel);
  const auto difference = compare(result, alone);
  EXPECT_LT(difference.loss, 1e-12);
  EXPECT_LT(difference.gradients, 1e-12);
  EXPECT_LT(difference.weights, 1e-9); // AdamW divides by small numbers
  EXPECT_EQ(
      result.collectives, ranks == 1 ? 0 : expected_collectives(2, parallel));
}

INSTANTIATE_TEST_SUITE_P(
    Configurations,
    Gpt,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Bool(),
        ::testing::Bool()));

TEST(GptDropout, DrawsOtherMasksEachStepAndWithEachSeed) {
  auto options = small();
  options.learning_rate = 0;
  options.model.dropout = 0.5;
  const auto a = run(options, 2, {});
  EXPECT_NE(a.losses[0], a.losses[1]);
  options.seed = 12;
  const auto b = run(options, 2, {});
  EXPECT_NE(a.losses[0], b.losses[0]);
}

TEST(Gpt32, TrainsInSinglePrecision) {
  auto options = small();
  options.dtype = torch::kFloat;
  const auto alone = run(options, 1, {});
  const auto difference = compare(run(options, 4, {true, true}), alone);
  EXPECT_LT(difference.loss, 1e-4);
  EXPECT_GT(alone.losses.front(), alone.losses.back());
}

// If a launcher starts the ranks, the GPT trains over the launcher's backend as
// on one rank.
TEST(GptOfALauncher, TrainsAsOnOneRank) {
  const auto launcher = dtensor::launched();
  if (!launcher) {
    GTEST_SKIP() << "no launcher has started this";
  }
  auto options = small();
  options.model.heads = 24; // divisible by 2, 3, 4 and 8 ranks
  const auto alone = run(options, 1, {});
  for (const Parallel parallel : {Parallel{}, Parallel{true, true}}) {
    const auto difference =
        compare(run(options, launcher->size, parallel), alone);
    EXPECT_LT(difference.loss, 1e-12);
    EXPECT_LT(difference.gradients, 1e-12);
    EXPECT_LT(difference.weights, 1e-9);
  }
}

} // namespace TEST_SOURCE
} // namespace gpt
