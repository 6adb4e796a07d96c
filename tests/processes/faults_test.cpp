// SPDX-License-Identifier: BSD-3-Clause
// What happens when something breaks: one of three ranks, which no launcher
// watches, does wrong, and the others end with an error that names it.
#include <dtensor/checkpoint/checkpoint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace TEST_SOURCE {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;

// What a rank printed, and its exit code; 128 + n if signal n killed it.
struct Ended {
  int code = 0;
  std::string output;
};

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Faults : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
        ("dtensor_faults_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
  }

  // Starts three ranks and waits for all of them.
  std::array<Ended, kRanks> run(
      const std::string& fault,
      int culprit,
      const std::string& debug = "OFF",
      int round = 5,
      std::vector<std::string> more = {}) {
    round_ = round;
    more_ = std::move(more);
    const int port = free_port();
    std::array<pid_t, kRanks> pids{};
    for (int rank = 0; rank < kRanks; ++rank) {
      pids[static_cast<size_t>(rank)] =
          start(fault, culprit, rank, port, debug);
    }
    std::array<Ended, kRanks> ended;
    bool others_have = false;
    for (const bool wait_for_culprit : {false, true}) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if ((rank == culprit) == wait_for_culprit) {
          if (wait_for_culprit && others_have && fault == "hang") {
            kill(pids[static_cast<size_t>(rank)], SIGKILL);
          }
          ended[static_cast<size_t>(rank)] =
              wait_for(pids[static_cast<size_t>(rank)], rank);
        }
      }
      others_have = true;
    }
    return ended;
  }

  fs::path folder_;
  /// How many threads of a process are ranks. The last of the culprit's does
  /// wrong.
  int threads_ = 1;

 private:
  int round_ = 5;
  std::vector<std::string> more_;

  pid_t start(
      const std::string& fault,
      int culprit,
      int rank,
      int port,
      const std::string& debug) {
    const pid_t pid = fork();
    if (pid != 0) {
      return pid;
    }
    const auto file = folder_ / ("out" + std::to_string(rank));
    if (std::freopen(file.c_str(), "w", stdout) == nullptr) {
      _exit(100);
    }
    dup2(STDOUT_FILENO, STDERR_FILENO);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(kRanks).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    setenv("DTENSOR_FLIGHT_RECORD", folder_.c_str(), 1);
    setenv("TORCH_DISTRIBUTED_DEBUG", debug.c_str(), 1);
    std::vector<std::string> words = {
        DTENSOR_FAULT_RANK,
        "--fault",
        fault,
        "--culprit",
        std::to_string(culprit * threads_ + threads_ - 1),
        "--ranks-per-process",
        std::to_string(threads_),
        "--round",
        std::to_string(round_),
        "--backend",
        GetParam()};
    words.insert(words.end(), more_.begin(), more_.end());
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    execv(DTENSOR_FAULT_RANK, arguments.data());
    _exit(101);
  }

  Ended wait_for(pid_t pid, int rank) {
    int status = 0;
    waitpid(pid, &status, 0);
    return {
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
        read_file(folder_ / ("out" + std::to_string(rank)))};
  }
};

void expect_told(
    const std::array<Ended, kRanks>& ended,
    int culprit,
    const ::testing::Matcher<std::string>& what) {
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != culprit) {
      EXPECT_EQ(ended[static_cast<size_t>(rank)].code, 7) << "rank " << rank;
      EXPECT_THAT(ended[static_cast<size_t>(rank)].output, what)
          << "rank " << rank;
    }
  }
}

TEST_P(Faults, ARankThatDiesIsNamed) {
  for (const std::string fault : {"kill", "segv", "exit"}) {
    SCOPED_TRACE(fault);
    const auto ended = run(fault, 1);
    expect_told(
        ended,
        1,
        AllOf(
            HasSubstr("rank 1 (process "),
            HasSubstr(") has ended"),
            HasSubstr("It was number 11 of the collectives of rank "),
            HasSubstr("on \"tp\"")));
  }
}

// A rank that dies while all save: the others end, and what has a name is
// whole.
TEST_P(Faults, ARankThatDiesWhileItSavesLeavesWholeCheckpoints) {
  for (int culprit = 0; culprit < kRanks; ++culprit) {
    SCOPED_TRACE(culprit);
    const auto saves = folder_ / ("saves_" + std::to_string(culprit));
    fs::create_directories(saves);
    const auto ended =
        run("kill", culprit, "OFF", 3, {"--saves", saves.string()});
    expect_told(
        ended,
        culprit,
        HasSubstr("rank " + std::to_string(culprit) + " (process "));
    int found = 0;
    for (const auto& entry : fs::directory_iterator(saves)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with(".")) {
        continue;
      }
      dtensor::StateDict tensors;
      tensors.insert("w", at::zeros({300'000}));
      dtensor::load_checkpoint(entry.path().string(), {.tensors = &tensors});
      const auto step = std::stod(name.substr(std::string("step_").size()));
      EXPECT_TRUE(at::equal(tensors["w"], at::full({300'000}, step))) << name;
      ++found;
    }
    EXPECT_GE(found, 3);
  }
}

TEST_P(Faults, ARankThatThrowsSaysWhy) {
  for (const int culprit : {0, 2}) {
    SCOPED_TRACE(culprit);
    const auto ended = run("throw", culprit);
    const auto& wrong = ended[static_cast<size_t>(culprit)];
    EXPECT_EQ(wrong.code, 7);
    EXPECT_THAT(wrong.output, HasSubstr("no such row"));
    expect_told(
        ended,
        culprit,
        AllOf(
            HasSubstr("rank " + std::to_string(culprit) + " (process "),
            HasSubstr("failed: no such row")));
  }
}

// Its models may live on, and it may go on: the others end at once, not at the
// timeout.
TEST_P(Faults, ARankThatThrowsBeforeItsGroupMeetsIsNamed) {
  const auto ended = run("throw", 1, "OFF", /*round=*/-1);
  expect_told(
      ended,
      1,
      AllOf(
          HasSubstr("Meanwhile rank 1 (process "),
          HasSubstr("failed: no such row.")));
}

TEST_P(Faults, ARankThatThrowsAndKeepsItsGroupsEndsTheOthers) {
  const auto ended = run("throw", 1, "OFF", 5, {"--keep"});
  expect_told(
      ended,
      1,
      AllOf(
          HasSubstr("rank 1 (process "),
          HasSubstr("failed: no such row"),
          Not(HasSubstr("waited ")),
          Not(HasSubstr("imed out"))));
}

TEST_P(Faults, AThreadThatThrowsEndsTheRanksOfAllProcesses) {
  threads_ = 2;
  for (const int culprit : {0, 1}) {
    SCOPED_TRACE(culprit);
    const auto ended = run("throw", culprit);
    const auto name = "rank " + std::to_string(2 * culprit + 1);
    const auto& wrong = ended[static_cast<size_t>(culprit)];
    EXPECT_EQ(wrong.code, 7);
    EXPECT_THAT(
        wrong.output,
        AllOf(
            HasSubstr("[run_world] 2 of 2 ranks failed. "),
            HasSubstr(name + ": no such row")));
    expect_told(
        ended,
        culprit,
        AllOf(
            HasSubstr(name + " (process "), HasSubstr("failed: no such row")));
  }
}

TEST_P(Faults, AProcessOfSeveralRanksDies) {
  threads_ = 2;
  const auto ended = run("kill", 1);
  expect_told(
      ended, 1, AllOf(HasSubstr("rank 3 (process "), HasSubstr("has ended")));
}

TEST_P(Faults, TheRankOfTheStoreDies) {
  const auto ended = run("kill", 0);
  expect_told(
      ended,
      0,
      AnyOf(
          HasSubstr(") has ended"), HasSubstr("the store cannot be reached")));
}

TEST_P(Faults, ARankThatHangsIsNamedAtTheTimeout) {
  const auto ended = run("hang", 1);
  expect_told(ended, 1, HasSubstr("rank 1 runs and says nothing"));
}

// Long before the world's.
TEST_P(Faults, GroupsAndCallsHaveTimeoutsOfTheirOwn) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{
           {"--group-timeout-ms", "500"},
           {"--call-timeout-ms", "500"},
           {"--group-timeout-ms", "60000", "--call-timeout-ms", "500"}}) {
    auto options = more;
    options.insert(options.end(), {"--timeout-ms", "30000"});
    const auto ended = run("hang", 1, "OFF", 5, options);
    expect_told(
        ended,
        1,
        AllOf(
            AnyOf(HasSubstr("waited 500 ms"), HasSubstr("500ms")),
            HasSubstr("rank 1 runs and says nothing")));
  }
}

TEST_P(Faults, ARankThatNeverComesIsNamed) {
  const auto ended = run("absent", 1);
  expect_told(
      ended,
      1,
      HasSubstr("[init_process_group] rank 1 of 3 did not come within 4 s"));
}

TEST_P(Faults, AnotherCollectiveIsNamedWhereRanksCompare) {
  const auto ended = run("other", 1, "DETAIL");
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.code, 7);
    EXPECT_THAT(
        rank.output,
        AllOf(
            HasSubstr("ranks of \"tp\" disagree"),
            HasSubstr("rank 1 calls broadcast")));
  }
}

TEST_P(Faults, TheLastCollectivesAreOnRecord) {
  const auto ended = run("kill", 1);
  for (const int rank : {0, 2}) {
    std::string text;
    std::string json;
    for (const auto& file : fs::directory_iterator(folder_)) {
      const auto name = file.path().string();
      if (name.find(".rank" + std::to_string(rank)) != std::string::npos) {
        (name.ends_with(".txt") ? text : json) = read_file(file);
      }
    }
    EXPECT_THAT(text, HasSubstr("rank " + std::to_string(rank) + " of 3"));
    EXPECT_THAT(text, HasSubstr("not ended  all_reduce"));
    EXPECT_THAT(text, HasSubstr("all_gather"));
    EXPECT_THAT(json, HasSubstr("\"collective\": \"all_reduce\""));
    EXPECT_THAT(json, HasSubstr("\"end\": null"));
  }
}

// Any rank dies or throws at any point. DTENSOR_SWEEP=n makes n runs of it.
TEST_P(Faults, AtAnyPoint) {
  const char* wanted = std::getenv("DTENSOR_SWEEP");
  const int runs = wanted == nullptr ? 5 : std::atoi(wanted);
  const std::vector<std::string> faults = {"throw", "kill", "segv", "exit"};
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  for (int i = 0; i < runs; ++i) {
    const auto& fault = faults[below(faults.size())];
    const int culprit = static_cast<int>(below(kRanks));
    const int round = static_cast<int>(below(21)) - 1;
    SCOPED_TRACE(
        fault + " of rank " + std::to_string(culprit) + " in round " +
        std::to_string(round));
    const auto ended = run(fault, culprit, "OFF", round);
    const auto name = "rank " + std::to_string(culprit);
    expect_told(
        ended,
        culprit,
        AnyOf(
            HasSubstr(name + " (process "),
            HasSubstr("the store cannot be reached")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Over,
    Faults,
    ::testing::Values("gloo", "shm"),
    [](const auto& backend) { return backend.param; });

} // namespace TEST_SOURCE
