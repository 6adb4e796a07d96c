// SPDX-License-Identifier: BSD-3-Clause
// Environment of ranks when they start.
#include <gmock/gmock.h>
#include <sched.h>

#include <set>
#include <sstream>

#include "launched.h"

namespace launcher {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

std::set<int> parse_cpus(const std::string& text) {
  std::set<int> cpus;
  std::istringstream in(text);
  for (int first = 0; in >> first; in.ignore()) {
    int last = first;
    if (in.peek() == '-') {
      in.ignore();
      in >> last;
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.insert(cpu);
    }
  }
  return cpus;
}

std::set<int> own_cpus() {
  cpu_set_t allowed;
  std::set<int> cpus;
  EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) {
      cpus.insert(cpu);
    }
  }
  return cpus;
}

// Returns the CPUs of each rank.
std::vector<std::set<int>> cpus_of_ranks(
    int ranks,
    std::vector<std::string> options) {
  Launched job(on_ranks(
      ranks, "grep Cpus_allowed_list /proc/self/status", std::move(options)));
  EXPECT_EQ(job.finish(), 0) << job.err();
  std::vector<std::set<int>> cpus;
  for (const auto& text : job.values("Cpus_allowed_list:\t")) {
    cpus.push_back(parse_cpus(text));
  }
  EXPECT_EQ(cpus.size(), static_cast<size_t>(ranks));
  return cpus;
}

TEST(Ranks, FindTheVariablesOfTorchrun) {
  Launched job(on_ranks(
      2,
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK"
      " $GROUP_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT"
      " $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_USE_AGENT_STORE;"
      "echo key $TORCHELASTIC_RUN_ID; echo port $MASTER_PORT",
      {"--max-restarts", "3"}));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(
      job.lines(), testing::Contains("[0] 0 2 0 2 0 1 127.0.0.1 0 3 True"));
  EXPECT_THAT(
      job.lines(), testing::Contains("[1] 1 2 1 2 0 1 127.0.0.1 0 3 True"));
  const auto keys = job.values("key ");
  const auto ports = job.values("port ");
  EXPECT_THAT(keys, ElementsAre(testing::SizeIs(32), keys.at(0)));
  EXPECT_THAT(ports, ElementsAre(testing::Ne("0"), ports.at(0)));
}

// Returns OMP_NUM_THREADS of each rank if the launcher runs with `setting`,
// which is passed to env.
std::vector<std::string> threads_of(
    int ranks,
    std::vector<std::string> setting) {
  setting.push_back(DTENSOR_RUN);
  const auto job = on_ranks(ranks, "echo threads ${OMP_NUM_THREADS:-unset}");
  setting.insert(setting.end(), job.begin(), job.end());
  Launched launched(setting, "env");
  EXPECT_EQ(launched.finish(), 0) << launched.err();
  return launched.values("threads ");
}

TEST(Ranks, HaveTheirShareOfThreads) {
  const auto shared = threads_of(2, {"-u", "OMP_NUM_THREADS"});
  EXPECT_THAT(shared, ElementsAre(testing::Ne("unset"), shared.at(0)));
  EXPECT_THAT(threads_of(1, {"-u", "OMP_NUM_THREADS"}), ElementsAre("unset"));
  EXPECT_THAT(threads_of(2, {"OMP_NUM_THREADS=7"}), ElementsAre("7", "7"));
}

TEST(Ranks, HaveNothingToRead) {
  Launched job(on_ranks(1, "cat; echo end"));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "[0] end\n");
}

TEST(Ranks, HoldNoDescriptorOfTheLauncher) {
  // Ranks may only inherit the descriptors that this process has open without
  // close-on-exec.
  Launched with(on_ranks(2, "echo $(ls /proc/self/fd)"));
  EXPECT_EQ(with.finish(), 0);
  Launched without({"-c", "echo $(ls /proc/self/fd)"}, "sh");
  EXPECT_EQ(without.finish(), 0);
  EXPECT_THAT(
      with.lines(),
      UnorderedElementsAre(
          "[0] " + without.lines().at(0), "[1] " + without.lines().at(0)));
}

// The launcher itself blocks some signals and ignores SIGPIPE.
TEST(Ranks, InheritTheSignalsOfTheLauncher) {
  // The masks of the first 28 signals, because glibc uses some higher ones.
  const std::string masks =
      "grep -E 'Sig(Blk|Ign)' /proc/self/status | grep -oE '.{7}$'";
  for (const std::string before : {"", "trap '' PIPE; "}) {
    Launched with(
        {"-c", before + "exec " DTENSOR_RUN " -n 1 sh -c \"$0\"", masks}, "sh");
    EXPECT_EQ(with.finish(), 0);
    Launched without({"-c", before + masks}, "sh");
    EXPECT_EQ(without.finish(), 0);
    EXPECT_THAT(without.lines(), testing::SizeIs(2));
    EXPECT_THAT(
        with.lines(),
        ElementsAre(
            "[0] " + without.lines().at(0), "[0] " + without.lines().at(1)));
  }
}

TEST(Ranks, ShareTheCores) {
  const auto own = own_cpus();
  const auto ranks = static_cast<int>(std::min<size_t>(own.size(), 4));
  std::set<int> all;
  size_t total = 0;
  for (const auto& cpus : cpus_of_ranks(ranks, {})) {
    EXPECT_FALSE(cpus.empty());
    all.insert(cpus.begin(), cpus.end());
    total += cpus.size();
  }
  EXPECT_EQ(all, own);
  EXPECT_EQ(total, own.size()) << "two ranks have the same core";
}

TEST(Ranks, AreNotBoundWhereThatIsNotWantedOrThereAreTooMany) {
  const auto own = own_cpus();
  for (const auto& cpus : cpus_of_ranks(2, {"--no-bind"})) {
    EXPECT_EQ(cpus, own);
  }
  if (own.size() < 32) {
    for (const auto& cpus :
         cpus_of_ranks(static_cast<int>(own.size()) + 1, {})) {
      EXPECT_EQ(cpus, own);
    }
  }
}

} // namespace
} // namespace launcher
