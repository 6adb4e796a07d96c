// SPDX-License-Identifier: BSD-3-Clause
// Ranks draw the same numbers under each launcher: threads, dtensor-run,
// torchrun and the mpirun of each MPI that was found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace TEST_SOURCE {

// Commands that start ranks, from CMake, without the number of ranks.
const std::map<std::string, std::string> kLaunchers = {DTENSOR_LAUNCHERS};

std::string run(const std::string& command) {
  // torchrun prints a message if OMP_NUM_THREADS is unset.
  const std::string variables = "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo ";
  FILE* const pipe = popen((variables + command + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer{};
  while (size_t length = fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), length);
  }
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 0) << command << "\n" << output;
  return output;
}

std::string started(
    const std::string& launcher,
    int64_t ranks,
    const std::string& program) {
  return launcher + " " + std::to_string(ranks) + " " + program;
}

// Removes the "[0] " that dtensor-run prints before lines of rank 0.
std::string without_ranks(const std::string& output) {
  std::string result;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const bool has_rank = line.starts_with("[");
    result += (has_rank ? line.substr(line.find(' ') + 1) : line) + "\n";
  }
  return result;
}

// Values by name, one per rank that printed it.
using Draws = std::map<std::string, std::vector<double>>;

Draws draws_of(const std::string& output) {
  Draws draws;
  std::istringstream lines(without_ranks(output));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    double value = 0;
    if (fields >> name >> value) {
      draws[name].push_back(value);
    }
  }
  return draws;
}

// Draws must be equal, sums over ranks equal up to rounding.
void expect_equal(const std::string& name, double a, double b) {
  const bool is_sum =
      name.starts_with("output") || name.starts_with("gradient");
  EXPECT_NEAR(a, b, is_sum ? 1e-4 * (1 + std::abs(b)) : 0) << name;
}

void expect_alike(const Draws& draws, int64_t ranks, const std::string& what) {
  EXPECT_EQ(draws.size(), 20U) << what;
  for (const auto& [name, values] : draws) {
    EXPECT_EQ(static_cast<int64_t>(values.size()), ranks) << what << name;
    for (const double value : values) {
      expect_equal(name, value, values[0]);
    }
  }
}

void expect_same(const Draws& draws, const Draws& truth) {
  ASSERT_EQ(draws.size(), truth.size());
  for (const auto& [name, values] : truth) {
    ASSERT_EQ(draws.count(name), 1U) << name;
    expect_equal(name, draws.at(name)[0], values[0]);
  }
}

class LaunchedDraws : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string output(int64_t ranks, const std::string& arguments) {
    return run(started(
        kLaunchers.at(GetParam()), ranks, DTENSOR_DRAWS_RANK " " + arguments));
  }
};

// Four heads on three ranks are sharded into 2, 2 and 0.
TEST_P(LaunchedDraws, AreAlikeOnAllRanksUnseeded) {
  for (const int64_t ranks : {2, 3}) {
    const auto draws = draws_of(output(ranks, ""));
    expect_alike(draws, ranks, GetParam() + " ");
    const auto others = draws_of(output(ranks, ""));
    EXPECT_NE(others.at("plain"), draws.at("plain")) << "there is a seed";
  }
}

TEST_P(LaunchedDraws, EqualThreadsWithTheSameSeed) {
  for (const int64_t ranks : {2, 3}) {
    const auto threads = draws_of(
        run(DTENSOR_DRAWS_RANK " --seed 5 --ranks " + std::to_string(ranks)));
    expect_alike(threads, ranks, "threads ");
    const auto launched = draws_of(output(ranks, "--seed 5"));
    expect_alike(launched, ranks, GetParam() + " ");
    expect_same(launched, threads);
  }
}

TEST_P(LaunchedDraws, AreAlikeInEachWorldOfOneProcess) {
  const auto draws = draws_of(output(2, "--worlds 2"));
  ASSERT_EQ(draws.count("plain"), 1U);
  for (const std::string name : {"plain", "dtensor", "batch2", "after"}) {
    const auto& values = draws.at(name);
    // The stream of DTensors restarts with each world.
    const size_t worlds = name == "dtensor" ? 1 : 2;
    EXPECT_EQ(values.size(), 4U) << name;
    EXPECT_EQ(std::set(values.begin(), values.end()).size(), worlds) << name;
  }
}

// The seeded first program of README.md prints the same under all launchers.
TEST_P(LaunchedDraws, MakeTheProgramOfTheReadmePrintTheNumberOfThreads) {
  const auto threads = run(DTENSOR_README);
  EXPECT_THAT(threads, ::testing::StartsWith("0.0"));
  EXPECT_EQ(
      without_ranks(run(started(kLaunchers.at(GetParam()), 2, DTENSOR_README))),
      threads);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, command] : kLaunchers) {
    all.push_back(name);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Under,
    LaunchedDraws,
    ::testing::ValuesIn(names()),
    [](const auto& instance) { return instance.param; });

TEST(HybridDraws, AreAlikeOnThreadsOfSeveralProcesses) {
  const auto hybrid = [](const std::string& arguments) {
    return draws_of(
        run("DTENSOR_RANKS_PER_PROCESS=2 " DTENSOR_RUN
            " --no-bind -n 2 " DTENSOR_DRAWS_RANK " " +
            arguments));
  };
  expect_alike(hybrid(""), 4, "hybrid ");
  expect_same(
      hybrid("--seed 5"),
      draws_of(run(DTENSOR_DRAWS_RANK " --seed 5 --ranks 4")));
}

TEST(BackendDraws, AreAlikeOverEachBackend) {
  for (const std::string backend : {"gloo", "shm"}) {
    const auto output =
        run("DTENSOR_BACKEND=" + backend +
            " " DTENSOR_RUN " --no-bind -n 3 " DTENSOR_DRAWS_RANK);
    expect_alike(draws_of(output), 3, backend);
  }
}

} // namespace TEST_SOURCE
