// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>

#include <csignal>
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

TEST(Output, NeverMixesLinesOfBothStreamsInOnePipe) {
  const std::string script =
      "x=$(printf '%02000d' $RANK); for i in $(seq 100); do"
      " echo $x; echo $x >&2; done";
  Launched job(
      {"-c", DTENSOR_RUN " -n 2 sh -c \"$0\" 2>&1 | cat", script}, "sh");
  EXPECT_EQ(job.finish(), 0);
  std::map<std::string, int> counts;
  for (const auto& line : job.lines()) {
    ++counts[line];
  }
  const auto zeros = std::string(1999, '0');
  EXPECT_THAT(
      counts,
      ElementsAre(
          testing::Pair("[0] " + zeros + "0", 200),
          testing::Pair("[1] " + zeros + "1", 200)));
}

TEST(Output, MayBeClosed) {
  Launched job(
      {"-c", DTENSOR_RUN " -n 1 sh -c 'echo lost; echo kept >&2' >&-"}, "sh");
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(job.err(), "[0] kept\n");
}

// In the tests of StalledReader, the test itself stops reading.

// Writes more than a pipe holds.
const std::string kMuch = "head -c 500000 /dev/zero | tr '\\0' a; ";

TEST(StalledReader, DelaysNeitherErrorsNorSignals) {
  Launched job(on_ranks(1, "yes & sleep 1; echo full >&2; wait"));
  job.read_output(false);
  job.wait_for_error("[0] full");
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 128 + SIGTERM);
}

TEST(StalledReader, DoesNotExtendTheGrace) {
  Launched job(on_ranks(
      2,
      "trap '' TERM; yes & sleep 1; echo up >&2; [ $RANK = 1 ] && exit 3; wait",
      {"--grace", "1"}));
  job.read_output(false);
  job.wait_for_error("exited with code 3");
  job.read_output(true);
  EXPECT_EQ(job.finish(), 3);
}

TEST(StalledReader, GetsAllOutputOnceItReads) {
  Launched job(on_ranks(1, kMuch + "exit 3"));
  job.read_output(false);
  job.wait_for_error("exited with code 3");
  job.read_output(true);
  EXPECT_EQ(job.finish(), 3);
  EXPECT_THAT(job.lines(), ElementsAre("[0] " + std::string(500000, 'a')));
}

TEST(StalledReader, HoldsRanksBack) {
  Launched job(on_ranks(
      1,
      "(sleep 1; echo waited >&2) & yes | head -c 4000000;"
      " echo written >&2; wait"));
  job.read_output(false);
  job.wait_for_error("waited");
  EXPECT_EQ(job.err(), "[0] waited\n");
  job.read_output(true);
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.err(), "[0] waited\n[0] written\n");
  EXPECT_EQ(job.out().size(), 3 * 4000000U);
}

TEST(StalledReader, IsNotAwaitedAfterASignal) {
  Launched job(on_ranks(1, kMuch + "exit 3"));
  job.read_output(false);
  job.wait_for_error("exited with code 3");
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 3);
}

TEST(ClosedReader, EndsRanksAsAPlainPipeDoes) {
  Launched job({"-c", DTENSOR_RUN " -n 1 yes | head -1"}, "sh");
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "[0] y\n");
  EXPECT_EQ(
      job.err(),
      "[dtensor-run] rank 0 on " + host_name() +
          " was killed by signal 13 (Broken pipe).\n");
}

TEST(ClosedReader, LeavesRanksThatIgnoreSigpipe) {
  const std::string script =
      "trap '' PIPE; yes 2> /dev/null; echo goes on >&2; exit 4";
  Launched job(
      {"-c",
       "{ " DTENSOR_RUN " -n 1 sh -c \"$0\"; echo ended $? >&2; } | head -1",
       script},
      "sh");
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "[0] y\n");
  EXPECT_EQ(
      job.err(),
      "[0] goes on\n[dtensor-run] rank 0 on " + host_name() +
          " exited with code 4.\nended 4\n");
}

} // namespace
} // namespace launcher
