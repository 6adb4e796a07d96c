// SPDX-License-Identifier: BSD-3-Clause
// Ends of ranks, and the processes that may remain after them.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "launched.h"

namespace launcher {
namespace {

using testing::UnorderedElementsAre;

// A rank, and a process that it has started.
const std::string kFamily =
    "sleep 1000 & echo pid $$; echo pid $!; echo ready $RANK; ";

void wait_until_ready(Launched& job, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    job.wait_for("ready " + std::to_string(rank));
  }
}

void expect_nothing_left(const Launched& job, size_t processes) {
  EXPECT_EQ(job.values("pid ").size(), processes);
  EXPECT_TRUE(all_gone(job.values("pid "))) << job.out();
}

TEST(Processes, FailWithTheCodeOfTheFirst) {
  Launched job(on_ranks(
      3, "trap 'exit 9' TERM; [ $RANK = 1 ] && exit 3; sleep 1000 & wait"));
  EXPECT_EQ(job.finish(), 3);
  EXPECT_EQ(
      job.err(),
      "[dtensor-run] rank 1 on " + host_name() +
          " exited with code 3. The other ranks were terminated.\n");
}

TEST(Processes, FailWhereOneIsKilled) {
  Launched job(on_ranks(2, "[ $RANK = 1 ] && kill -SEGV $$; sleep 1000"));
  EXPECT_EQ(job.finish(), 128 + SIGSEGV);
  EXPECT_EQ(
      job.err(),
      "[dtensor-run] rank 1 on " + host_name() +
          " was killed by signal 11 (Segmentation fault). The other ranks were "
          "terminated.\n");
}

TEST(Processes, FailAlone) {
  Launched job(on_ranks(1, "exit 5"));
  EXPECT_EQ(job.finish(), 5);
  EXPECT_EQ(
      job.err(),
      "[dtensor-run] rank 0 on " + host_name() + " exited with code 5.\n");
}

TEST(Processes, ReportWhyTheyCannotStart) {
  std::string path = testing::TempDir() + "launcher_test_XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  std::ofstream(path) << "#!/no/such/interpreter\n";
  ::chmod(path.c_str(), 0700);
  Launched job({"-n", "1", path});
  EXPECT_EQ(job.finish(), 127);
  EXPECT_THAT(
      job.err(),
      testing::StartsWith(
          "[0] [dtensor-run] cannot execute " + path +
          ": No such file or directory.\n"));
  ::remove(path.c_str());
}

TEST(Processes, MayEndOneAfterTheOther) {
  Launched job(on_ranks(2, "[ $RANK = 1 ] && sleep 0.3; echo $RANK"));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "[0] 0\n[1] 1\n");
}

class Forwarded : public testing::TestWithParam<int> {};

TEST_P(Forwarded, SignalReachesRanksAndTheirChildren) {
  const int signal = GetParam();
  Launched job(on_ranks(
      2,
      "trap 'echo heard; exit 0' " + std::to_string(signal) + "; " + kFamily +
          "wait"));
  wait_until_ready(job, 2);
  job.signal(signal);
  EXPECT_EQ(job.finish(), 128 + signal);
  EXPECT_THAT(job.values("heard"), UnorderedElementsAre("", ""));
  EXPECT_THAT(
      job.err(),
      testing::StartsWith(
          "[dtensor-run] received signal " + std::to_string(signal) + " ("));
  expect_nothing_left(job, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Processes,
    Forwarded,
    testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(Processes, GoOnAfterAHangupThatIsIgnored) {
  Launched job(
      {"-c",
       "trap '' HUP; exec " DTENSOR_RUN
       " -n 1 sh -c 'echo ready; sleep 0.3; echo done'"},
      "sh");
  job.wait_for("ready");
  job.signal(SIGHUP);
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(job.values("done"), testing::SizeIs(1));
}

TEST(Processes, AreKilledAfterTheGrace) {
  Launched job(on_ranks(
      2,
      "trap '' TERM; " + kFamily + "while true; do sleep 1000; done",
      {"--grace", "1"}));
  wait_until_ready(job, 2);
  ::kill(std::stoi(job.values("[1] pid ").at(0)), SIGKILL);
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
  expect_nothing_left(job, 4);
}

TEST(Processes, LeaveNoChildren) {
  Launched job(on_ranks(2, kFamily));
  EXPECT_EQ(job.finish(), 0);
  expect_nothing_left(job, 4);
}

TEST(Processes, DieWithTheLauncher) {
  Launched job(on_ranks(2, "trap '' TERM HUP INT; " + kFamily + "wait"));
  wait_until_ready(job, 2);
  job.signal(SIGKILL);
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
  expect_nothing_left(job, 4);
}

TEST(Processes, StartAgainAfterAFailure) {
  Launched job(on_ranks(
      2,
      "echo start $RANK $TORCHELASTIC_RESTART_COUNT;"
      " [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 6;"
      " [ $TORCHELASTIC_RESTART_COUNT = 2 ] || sleep 1000",
      {"--max-restarts", "2"}));
  EXPECT_EQ(job.finish(), 0);
  const auto starts = job.values("start ");
  EXPECT_THAT(starts, testing::IsSupersetOf({"1 0", "1 1", "0 2", "1 2"}));
  const auto failed = "[dtensor-run] rank 1 on " + host_name() +
      " exited with code 6. The other ranks were terminated.";
  EXPECT_EQ(
      job.err(), failed + " Restart 1 of 2.\n" + failed + " Restart 2 of 2.\n");
}

TEST(Processes, StartAgainNoMoreThanAllowed) {
  Launched job(on_ranks(1, "echo start; exit 6", {"--max-restarts", "2"}));
  EXPECT_EQ(job.finish(), 6);
  EXPECT_THAT(job.values("start"), testing::SizeIs(3));
}

TEST(Processes, DoNotStartAgainAfterASignal) {
  Launched job(on_ranks(1, kFamily + "wait", {"--max-restarts", "2"}));
  wait_until_ready(job, 1);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 128 + SIGTERM);
  expect_nothing_left(job, 2);
}

} // namespace
} // namespace launcher
