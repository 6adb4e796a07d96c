// SPDX-License-Identifier: BSD-3-Clause
// Rank 0 evaluates or saves its sharded model alone, in the middle of training
// or after it. All ranks end with an error.
#include <dtensor/comm/ranks.h>
#include <tests/error_of.h>
#include <tests/processes/faults.h>
#include <tests/processes/rank_zero_alone.h>
#include <torch/torch.h>

namespace TEST_SOURCE {

using namespace dtensor::test_faults;
using ::testing::StartsWith;

// Steps of training after which rank 0 acts alone: in between, or after the
// last.
constexpr int kBetween = 2;
constexpr int kLast = dtensor::test::kSteps;

TEST(RankZeroAlone, IsNamedOnThreads) {
  const auto path = fs::path(::testing::TempDir()) /
      ("dtensor_alone_" + std::to_string(getpid()));
  const auto error_of_alone = [&](const std::string& what, int round) {
    return dtensor::test_text::error_of([&] {
      dtensor::run_ranks(kRanks, [&] {
        dtensor::test::train_with_rank_zero_alone(what, round, path.string());
      });
    });
  };
  EXPECT_EQ(
      error_of_alone("evaluate", kBetween),
      "[run_ranks] 3 of 3 ranks failed. every rank: [all_reduce] ranks of "
      "\"tp\" disagree: rank 0 calls all_reduce of f32[5, 6] with sum; ranks "
      "1, 2 call all_reduce of f32[8, 6] with sum. Call the same collective "
      "with the same sizes on every rank.");
  EXPECT_THAT(
      error_of_alone("save", kBetween),
      HasSubstr(
          "ranks of \"checkpoint\" disagree: rank 0 calls all_gather_strings; "
          "ranks 1, 2 call all_reduce of f32[8, 6] with sum."));
  // Ranks 1 and 2 need not have ended yet, or both.
  const std::string one = "[run_ranks] 1 of 3 ranks failed. rank 0: ";
  EXPECT_THAT(
      error_of_alone("evaluate", kLast),
      AllOf(
          StartsWith(one + "[all_reduce] \"tp\" waits for rank"),
          HasSubstr(" ended. Call the same collectives on every rank.")));
  EXPECT_THAT(
      error_of_alone("save", kLast),
      AllOf(
          StartsWith(
              one + "[all_gather_strings] \"checkpoint\" waits for rank"),
          HasSubstr(" ended. Call the same collectives on every rank.")));
  EXPECT_FALSE(fs::exists(path));
}

class ProcessAlone : public Faults {};

TEST_P(ProcessAlone, IsNamed) {
  setenv("DTENSOR_TEST_SAVES", folder_.c_str(), 1);
  for (const std::string what : {"evaluate", "save"}) {
    SCOPED_TRACE(what);
    for (const Ended& rank : run(what, 0, "DETAIL", kBetween)) {
      EXPECT_EQ(rank.code, 7);
      EXPECT_THAT(rank.output, HasSubstr("ranks of \"tp\" disagree: rank 0"));
    }
    const auto ended = run(what, 0, "DETAIL", kLast);
    EXPECT_EQ(ended[0].code, 7);
    EXPECT_THAT(ended[0].output, HasSubstr(" has left the world"));
    EXPECT_EQ(ended[1].code, 0);
    EXPECT_EQ(ended[2].code, 0);
    EXPECT_FALSE(fs::exists(folder_ / "alone"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Over,
    ProcessAlone,
    ::testing::Values("shm", "gloo"),
    [](const auto& backend) { return backend.param; });

} // namespace TEST_SOURCE
