// SPDX-License-Identifier: BSD-3-Clause
// Fixture that starts three ranks of a program without a launcher; one of the
// ranks behaves incorrectly.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/free_port.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace dtensor::test_faults {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

inline constexpr int kRanks = 3;

// Output of a rank, and its exit code; 128 + n if signal n killed it.
struct Ended {
  int code = 0;
  std::string output;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Matches "rank 1 (process 4711 on oak)", with this host's name.
inline ::testing::Matcher<std::string> names_rank(int rank) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  gethostname(host.data(), host.size() - 1);
  return ::testing::ContainsRegex(
      "rank " + std::to_string(rank) + " \\(process [0-9]+ on " + host.data() +
      "\\)");
}

/// Starts programs as ranks. The parameter is the backend.
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
          if (wait_for_culprit && others_have &&
              (fault == "hang" || fault == "stop")) {
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
  /// Number of threads per process that are ranks. The fault occurs in the last
  /// thread of the culprit's process.
  int threads_ = 1;
  /// Sets environment variables of a rank, with which it finds the other ranks.
  std::function<void(int rank, int port)> set_variables_ = [](int rank,
                                                              int port) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(kRanks).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  };

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
    set_variables_(rank, port);
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
        std::to_string(round_)};
    words.insert(words.end(), more_.begin(), more_.end());
    if (std::find(words.begin(), words.end(), "--backend") == words.end()) {
      words.insert(words.end(), {"--backend", GetParam()});
    }
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

inline void expect_report(
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

} // namespace dtensor::test_faults
