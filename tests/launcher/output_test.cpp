// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>

#include <map>

#include "launched.h"

namespace launcher {
namespace {

using testing::ElementsAre;

TEST(Output, HasTheRankBeforeEachLine) {
  Launched job(on_ranks(2, "echo one; echo; printf last; echo bad >&2"));
  EXPECT_EQ(job.finish(), 0);
  std::map<char, std::string> of_rank;
  for (const auto& line : job.lines()) {
    of_rank[line.at(1)] += line + "\n";
  }
  EXPECT_EQ(of_rank['0'], "[0] one\n[0] \n[0] last\n");
  EXPECT_EQ(of_rank['1'], "[1] one\n[1] \n[1] last\n");
  EXPECT_THAT(
      job.err(), testing::AnyOf("[0] bad\n[1] bad\n", "[1] bad\n[0] bad\n"));
}

TEST(Output, IsRawWithoutPrefix) {
  Launched job(on_ranks(2, "echo same; echo bad >&2", {"--no-prefix"}));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "same\nsame\n");
  EXPECT_EQ(job.err(), "bad\nbad\n");
}

// Lines that are written in two calls do not mix, even if there are more lines
// than a pipe holds.
TEST(Output, NeverMixesLines) {
  Launched job(on_ranks(
      4,
      "x=$(printf '%03000d' $RANK); for i in $(seq 100); do"
      " printf begin$x; echo ${x}end; done"));
  EXPECT_EQ(job.finish(), 0);
  std::map<std::string, int> counts;
  for (const auto& line : job.lines()) {
    ++counts[line];
  }
  EXPECT_EQ(counts.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    const auto text = std::string(2999, '0') + std::to_string(rank);
    const auto line =
        "[" + std::to_string(rank) + "] begin" + text + text + "end";
    EXPECT_EQ(counts[line], 100) << rank;
  }
}

TEST(Output, KeepsLongLinesIntact) {
  Launched job(on_ranks(2, "head -c 500000 /dev/zero | tr '\\0' $RANK"));
  EXPECT_EQ(job.finish(), 0);
  auto lines = job.lines();
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(
      lines,
      ElementsAre(
          "[0] " + std::string(500000, '0'),
          "[1] " + std::string(500000, '1')));
}

TEST(Output, CutsLinesThatWouldFillTheMemory) {
  Launched job(on_ranks(1, "head -c 3000000 /dev/zero | tr '\\0' a"));
  EXPECT_EQ(job.finish(), 0);
  size_t total = 0;
  for (const auto& line : job.lines()) {
    EXPECT_EQ(line.substr(0, 5), "[0] a");
    EXPECT_LE(line.size(), 1200000U);
    total += line.size() - 4;
  }
  EXPECT_EQ(total, 3000000U);
}

} // namespace
} // namespace launcher
