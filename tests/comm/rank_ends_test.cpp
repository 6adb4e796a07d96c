// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are threads and end in another way than by return or exception.
#include <dtensor/comm/group.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/world.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/exit_thread.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;
using test::exit_thread;
using ::testing::AllOf;
using ::testing::HasSubstr;

GroupPtr both() {
  return new_group({0, 1}, "tp");
}

struct Ended {
  int status = 0; // negative: minus the signal
  std::string output;
};

// Runs `body` in the main thread of a child process, for at most 30 seconds.
Ended in_child(const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    alarm(30);
    body();
    std::fflush(nullptr);
    _exit(100);
  }
  close(ends[1]);
  Ended ended;
  char part[4096];
  for (ssize_t got = 0; (got = read(ends[0], part, sizeof(part))) > 0;) {
    ended.output.append(part, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

TEST(EndOfARank, ByPthreadExitIsAFailure) {
  EXPECT_EQ(
      error_of([] {
        run_ranks(2, [](int64_t rank) {
          if (rank == 1) {
            exit_thread();
          }
          both()->barrier();
        });
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: the thread of this rank was "
      "terminated by pthread_exit. Return from the function instead.; rank 0 "
      "was terminated in barrier on \"tp\"");
}

TEST(EndOfARank, ByPthreadExitUnwindsItsStack) {
  std::atomic<int> destroyed{0};
  struct Guard {
    std::atomic<int>& count;
    ~Guard() {
      ++count;
    }
  };
  EXPECT_THAT(
      error_of([&] {
        run_ranks(3, [&] {
          const Guard guard{destroyed};
          exit_thread();
        });
      }),
      HasSubstr("3 of 3 ranks failed. every rank: the thread of this rank was "
                "terminated by pthread_exit."));
  EXPECT_EQ(destroyed, 3);
}

TEST(EndOfARank, ByPthreadExitEndsLivingRanks) {
  Ranks ranks(2);
  EXPECT_THAT(
      error_of([&] { ranks.run([] { exit_thread(); }); }),
      HasSubstr("terminated by pthread_exit"));
  EXPECT_THAT(
      error_of([&] { ranks.run([] {}); }),
      HasSubstr("an earlier function failed, which terminated 2 ranks."));
  run_ranks(2, [] { both()->barrier(); }); // other ranks are unaffected
}

std::atomic<int64_t> steps{0};

// Computes and communicates on all ranks until the process ends.
void run_for_ever() {
  run_ranks(2, [] {
    const auto group = both();
    const auto x = torch::ones({64, 64});
    while (true) {
      group->all_reduce(torch::mm(x, x), ReduceOp::kSum);
      ++steps;
    }
  });
}

void await_steps(int64_t count) {
  while (steps < count) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(Exit, OnTheMainThreadWhileRanksRunEndsWithItsStatus) {
  for (const int64_t count : {1, 10, 1000}) {
    const auto ended = in_child([&] {
      std::thread([] { run_for_ever(); }).detach();
      await_steps(count);
      std::printf("last words");
      std::exit(3);
    });
    EXPECT_EQ(ended.status, 3) << ended.output;
    EXPECT_EQ(ended.output, "last words");
  }
}

TEST(Exit, WhileLivingRanksRunEndsWithItsStatus) {
  const auto ended = in_child([] {
    static Ranks ranks(2);
    ranks.run([] { both()->barrier(); });
    std::thread([] {
      ranks.run([] {
        while (true) {
          both()->barrier();
          ++steps;
        }
      });
    }).detach();
    await_steps(100);
    std::exit(4);
  });
  EXPECT_EQ(ended.status, 4) << ended.output;
}

TEST(Exit, OnARanksThreadEndsWithItsStatus) {
  const auto ended = in_child([] {
    run_ranks(2, [](int64_t rank) {
      if (rank == 1) {
        std::exit(5);
      }
      both()->barrier();
    });
  });
  EXPECT_EQ(ended.status, 5) << ended.output;
}

// Static objects are destroyed as usual if no ranks run.
TEST(Exit, AfterRanksHaveEndedRunsDestructors) {
  const auto ended = in_child([] {
    run_ranks(2, [] { both()->barrier(); });
    std::atexit([] {
      std::printf("bye");
      std::fflush(stdout);
    });
    std::exit(0);
  });
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.output, "bye");
}

TEST(ForkedChild, CannotRunItsParentsRanks) {
  Ranks ranks(2);
  ranks.run([] { both()->barrier(); });
  const auto ended = in_child(
      [&] { std::printf("%s", error_of([&] { ranks.run([] {}); }).c_str()); });
  EXPECT_EQ(ended.status, 100) << ended.output;
  EXPECT_EQ(
      ended.output,
      "[Ranks::run] these ranks are threads of the process that this one was "
      "forked from. Make Ranks in the child.");
  ranks.run([] { both()->barrier(); }); // the parent continues
}

TEST(ForkedChild, MayDestroyItsParentsRanks) {
  auto ranks = std::make_unique<Ranks>(2);
  ranks->run([] { both()->barrier(); });
  const auto ended = in_child([&] { ranks.reset(); });
  EXPECT_EQ(ended.status, 100) << ended.output;
}

TEST(ForkedChild, MayMakeRanksOfItsOwn) {
  const auto ended = in_child([] {
    run_ranks(2, [] { both()->barrier(); });
    std::printf("done");
  });
  EXPECT_EQ(ended.status, 100) << ended.output;
  EXPECT_EQ(ended.output, "done");
}

// A forked child of a rank contains only the forking thread, so it cannot
// communicate.
TEST(ForkedChild, OfARankCannotCommunicate) {
  Ended ended;
  run_ranks(2, [&](int64_t rank) {
    const auto group = both();
    group->barrier();
    if (rank == 1) {
      ended = in_child([&] {
        std::printf("%s", error_of([&] { group->barrier(); }).c_str());
      });
    }
    group->barrier();
  });
  EXPECT_EQ(ended.status, 100) << ended.output;
  EXPECT_EQ(
      ended.output,
      "[barrier] the other ranks of \"tp\" are threads of the process that "
      "this one was forked from. Make ranks in the child.");
}

// The other ranks take and release the locks of all ranks during the forks.
TEST(ForkedChild, OfARankEndsWithItsFunction) {
  run_ranks(3, [&](int64_t rank) {
    if (rank > 0) {
      const auto others = new_group({1, 2}, "dp");
      for (int i = 0; i < 2000; ++i) {
        others->barrier();
      }
      return;
    }
    for (int i = 0; i < 20; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(30);
        return;
      }
      int status = 0;
      waitpid(child, &status, 0);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
