// SPDX-License-Identifier: BSD-3-Clause
// Parsing of the variables that launchers set. The values were observed with
// the real launchers.
#include <dtensor/comm/group.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/run_world.h>
#include <gmock/gmock.h>
#include <tests/comm/expect_error.h>
#include <tests/exit_thread.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using detail::LaunchEnv;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchEnv read(const Variables& variables) {
  return detail::read_launch_env([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error(const Variables& variables) {
  return test::error_of<c10::ValueError>([&] { read(variables); });
}

TEST(LaunchEnv, OfNoLauncher) {
  const auto env = read({});
  EXPECT_EQ(env.launcher, "");
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.size, 1);
  // A shell in a Slurm allocation is not a step.
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).launcher, "");
}

TEST(LaunchEnv, OfTorchrun) {
  const auto env = read(
      {{"RANK", "3"},
       {"WORLD_SIZE", "4"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "2"},
       {"MASTER_ADDR", "oak"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_RUN_ID", "blue"},
       {"TORCHELASTIC_RESTART_COUNT", "2"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(env.launcher, "torchrun");
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.size, 4);
  EXPECT_EQ(env.local_size, 2);
  EXPECT_EQ(env.master_addr, "oak");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_TRUE(env.launcher_has_store);
  EXPECT_EQ(env.job, "blue");
  EXPECT_EQ(env.attempt, 2);
}

TEST(LaunchEnv, OfMpi) {
  const auto open = read(
      {{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "3"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
       {"PMIX_NAMESPACE", "1092878337"}});
  EXPECT_EQ(open.launcher, "OpenMPI");
  EXPECT_EQ(open.rank, 1);
  EXPECT_EQ(open.local_size, 3);
  EXPECT_EQ(open.job, "1092878337");
  EXPECT_EQ(open.master_addr, "");
  const auto mpich =
      read({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}});
  EXPECT_EQ(mpich.launcher, "PMI");
  EXPECT_EQ(mpich.rank, 2);
  EXPECT_EQ(mpich.local_size, 3);
}

TEST(LaunchEnv, OfSlurm) {
  Variables step = {
      {"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "8"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_NUM_NODES", "2"}};
  EXPECT_EQ(read(step).launcher, "Slurm");
  EXPECT_EQ(read(step).rank, 5);
  EXPECT_EQ(read(step).local_size, 0);
  step["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(read(step).local_size, 8);
}

TEST(LaunchEnv, ThatContradictsItself) {
  EXPECT_EQ(
      error({{"RANK", "1"}}),
      "[init_process_group] RANK is set and WORLD_SIZE is not. Set both, or "
      "start the program with a launcher.");
  EXPECT_EQ(
      error({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
      "[init_process_group] RANK is 4 and WORLD_SIZE is 4. Ranks range from 0 "
      "to the size minus 1.");
  EXPECT_EQ(
      error({{"RANK", "one"}, {"WORLD_SIZE", "4"}}),
      "[init_process_group] RANK is not a number from 0 to 1048575: \"one\". "
      "Start the program with a launcher, or set it to a number in this "
      "range.");
  EXPECT_EQ(
      error({{"MASTER_ADDR", "oak"}}),
      "[init_process_group] MASTER_ADDR is \"oak\" and MASTER_PORT 0. Set "
      "both, "
      "to where rank 0 can listen, or neither.");
}

TEST(InitProcessGroup, AloneIsAWorldOfOne) {
  init_process_group({.rank = 0, .world_size = 1});
  EXPECT_TRUE(is_initialized());
  EXPECT_EQ(get_world_size(), 1);
  EXPECT_EQ(get_node_local_rank(), 0);
  EXPECT_THAT(
      test::error_of([] { init_process_group(); }),
      HasSubstr("[init_process_group] this process is already a rank."));
  destroy_process_group();
  EXPECT_FALSE(is_initialized());
  destroy_process_group();
  init_process_group({.rank = 0, .world_size = 1});
  destroy_process_group();
}

using Handler = void (*)(int);

Handler handler_of(int signal) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

// Python ignores these signals in every program.
TEST(InitProcessGroup, IgnoresSignalsOfWritesWhileItIsARank) {
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    EXPECT_EQ(handler_of(signal), SIG_DFL);
    init_process_group({.rank = 0, .world_size = 1});
    EXPECT_EQ(handler_of(signal), SIG_IGN);
    destroy_process_group();
    EXPECT_EQ(handler_of(signal), SIG_DFL);
  }
}

TEST(InitProcessGroup, KeepsASignalHandlerThatTheProgramInstalledMeanwhile) {
  const Handler handler = [](int) {};
  init_process_group({.rank = 0, .world_size = 1});
  std::signal(SIGPIPE, handler);
  destroy_process_group();
  EXPECT_EQ(handler_of(SIGPIPE), handler);
  EXPECT_EQ(handler_of(SIGXFSZ), SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
}

TEST(InitProcessGroup, RejectsInconsistentArguments) {
  const auto error = [](const ProcessGroupOptions& options) {
    return test::error_of<c10::ValueError>(
        [&] { init_process_group(options); });
  };
  EXPECT_THAT(
      error({.rank = 2, .world_size = 2}),
      HasSubstr("no rank 2 in a world of 2."));
  EXPECT_THAT(
      error({.rank = 0, .world_size = 2}),
      HasSubstr("no rendezvous address for 2 ranks: the program was not "
                "started by a launcher."));
  EXPECT_THAT(
      error({.init_method = "udp://x:1", .rank = 0, .world_size = 2}),
      HasSubstr("unknown init_method: \"udp://x:1\"."));
  EXPECT_THAT(
      error({.init_method = "tcp://x", .rank = 0, .world_size = 2}),
      HasSubstr("no host and port in \"tcp://x\"."));
  EXPECT_THAT(
      error({.backend = "smoke", .rank = 0, .world_size = 1}),
      HasSubstr("unknown backend \"smoke\". Use one of: "));
  EXPECT_THAT(
      error({.backend = "cpu:smoke", .rank = 0, .world_size = 1}),
      HasSubstr("unknown backend \"smoke\". Use one of: "));
  EXPECT_FALSE(is_initialized());
}

TEST(InitProcessGroup, ReportsAMissingStore) {
  const auto text = test::error_of([] {
    // Only root can listen at port 1, so nothing listens there.
    init_process_group(
        {.init_method = "tcp://127.0.0.1:1",
         .rank = 1,
         .world_size = 2,
         .timeout = std::chrono::milliseconds(300)});
  });
  EXPECT_THAT(
      text,
      HasSubstr("[init_process_group] the store at 127.0.0.1:1 cannot be "
                "reached: Connection refused. Check that the process that "
                "hosts it, rank 0 or the launcher, is running, and that "
                "MASTER_ADDR and MASTER_PORT are those of this job."));
  EXPECT_FALSE(is_initialized());
}

TEST(InitProcessGroup, IsNotForRanksThatAreThreads) {
  run_ranks(2, [] {
    EXPECT_THAT(
        test::error_of([] { init_process_group(); }),
        HasSubstr("this process is running ranks."));
  });
}

class SeveralRanksAProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, value] : variables_) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : variables_) {
      unsetenv(name.c_str());
    }
  }

 private:
  Variables variables_{
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"DTENSOR_RANKS_PER_PROCESS", "3"}};
};

TEST_F(SeveralRanksAProcess, AreAllCounted) {
  const auto launcher = launched();
  ASSERT_TRUE(launcher);
  EXPECT_EQ(launcher->rank, 3);
  EXPECT_EQ(launcher->size, 6);
}

TEST_F(SeveralRanksAProcess, AreOfRunWorldAlone) {
  EXPECT_EQ(
      test::error_of<c10::ValueError>([] { init_process_group(); }),
      "[init_process_group] DTENSOR_RANKS_PER_PROCESS is 3, but this process "
      "is one rank. Use run_world, whose ranks are threads of each process, or "
      "unset it.");
  EXPECT_EQ(
      test::error_of<c10::ValueError>(
          [] { run_world(1, [] {}, {.ranks_per_process = -1}); }),
      "[run_world] ranks_per_process is -1. Pass the number of ranks (threads) "
      "per process, or leave it out.");
}

// Variables of the only process of a world.
class OneProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
  }
  void TearDown() override {
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
  }
};

TEST_F(OneProcess, EndsItsWorldWithItsThread) {
  std::thread([] {
    run_world(1, [] {
      EXPECT_TRUE(is_initialized());
      test::exit_thread();
    });
  }).join();
  EXPECT_FALSE(is_initialized());
}

// The error of a rank's forked child ends the child's copy of the world alone.
TEST_F(OneProcess, SurvivesAnErrorOfItsChild) {
  const pid_t parent = getpid();
  int status = -1;
  const auto text = test::error_of([&] {
    run_world(1, [&] {
      const pid_t child = fork();
      TORCH_CHECK(child != 0, "no such row");
      waitpid(child, &status, 0);
      EXPECT_TRUE(is_initialized());
    });
  });
  if (getpid() != parent) {
    _exit(text == "no such row" && !is_initialized() ? 3 : 4);
  }
  EXPECT_EQ(text, "nothing was thrown");
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST_F(OneProcess, ReportsEveryExceptionOfItsThreads) {
  const auto error_of_run = [](const std::function<void()>& fn) {
    return test::error_of([&] { run_world(1, fn, {.ranks_per_process = 2}); });
  };
  EXPECT_EQ(
      error_of_run([] {
        if (get_rank() == 1) {
          throw 7;
        }
      }),
      "[run_world] 1 of 2 ranks failed. rank 1: an exception not derived from "
      "std::exception");
  EXPECT_EQ(
      error_of_run([] {
        TORCH_CHECK(get_rank() == 0, "no such row");
        new_group({0, 1}, "tp")->barrier();
      }),
      "[run_world] 1 of 2 ranks failed. rank 1: no such row; rank 0 was "
      "terminated in barrier on \"tp\"");
}

TEST_F(OneProcess, CountsItsThreadsOnItsHostOverGloo) {
  std::array<int64_t, 2> local{-1, -1};
  run_world(
      1,
      [&] {
        local[static_cast<size_t>(get_rank())] = get_node_local_rank();
        const auto group = new_group({0, 1}, "tp", {.backend = "gloo"});
        EXPECT_TRUE(torch::equal(
            group->all_reduce(torch::ones(2), ReduceOp::kSum),
            torch::full({2}, 2.0)));
      },
      {.ranks_per_process = 2});
  EXPECT_EQ(local, (std::array<int64_t, 2>{0, 1}));
}

TEST(RunWorld, RunsThreadsWithoutALauncher) {
  std::atomic<int64_t> sum{0};
  EXPECT_EQ(get_node_local_rank(), 0);
  run_world(3, [] { EXPECT_EQ(get_node_local_rank(), 0); });
  run_world(3, [&] { sum += get_rank() + 10 * get_world_size(); });
  EXPECT_EQ(sum, 3 + 90);
}

} // namespace TEST_SOURCE
} // namespace dtensor
