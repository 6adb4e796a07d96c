// SPDX-License-Identifier: BSD-3-Clause
// dtensor-run restarts a failed job, and the program resumes from its last
// checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace TEST_SOURCE {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Restarts : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
        ("dtensor_restarts_" + std::to_string(getpid()));
    fs::create_directories(folder_ / "undisturbed");
    fs::create_directories(folder_ / "killed");
  }
  void TearDown() override {
    fs::remove_all(folder_);
  }

  // Runs a job of two ranks and returns its output. Sets `code_` to the exit
  // status.
  std::string run(const std::string& options, const std::string& arguments) {
    const std::string command = "DTENSOR_FLIGHT_RECORD=off " DTENSOR_RUN
                                " -n 2 --no-bind " +
        options + " " DTENSOR_RESUMING_RANK " " + arguments + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> buffer{};
    while (size_t length = fread(buffer.data(), 1, buffer.size(), pipe)) {
      output.append(buffer.data(), length);
    }
    code_ = WEXITSTATUS(pclose(pipe));
    return output;
  }

  std::set<std::string> checkpoints(const std::string& name) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  fs::path folder_;
  int code_ = -1;
};

// Returns the texts after "ended with loss", one per rank.
std::set<std::string> losses(const std::string& output) {
  const std::string before = "ended with loss ";
  std::set<std::string> result;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (const auto at = line.find(before); at != std::string::npos) {
      result.insert(line.substr(at + before.size()));
    }
  }
  return result;
}

// The restarted program continues bit for bit, including the optimizer's state.
TEST_F(Restarts, TheProgramGoesOnFromItsLastState) {
  const auto undisturbed = run("", (folder_ / "undisturbed").string());
  EXPECT_EQ(code_, 0) << undisturbed;
  EXPECT_THAT(undisturbed, HasSubstr("rank 1 began after step 0 "));
  const auto killed = run(
      "--max-restarts 1", (folder_ / "killed").string() + " --dies-after 5");
  EXPECT_EQ(code_, 0) << killed;
  EXPECT_THAT(killed, HasSubstr("was killed by signal 9"));
  EXPECT_THAT(killed, HasSubstr("Restart 1 of 1."));
  for (const std::string rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(killed, HasSubstr(rank + " began after step 4 "));
  }
  EXPECT_EQ(losses(killed).size(), 1U) << killed;
  EXPECT_EQ(losses(killed), losses(undisturbed));
  EXPECT_THAT(checkpoints("killed"), ElementsAre("step_7", "step_8"));
}

TEST_F(Restarts, WithoutThemTheJobFailsAndItsLastStateIsThere) {
  const auto output =
      run("", (folder_ / "killed").string() + " --dies-after 5");
  EXPECT_EQ(code_, 128 + 9) << output;
  EXPECT_THAT(checkpoints("killed"), ElementsAre("step_3", "step_4"));
}

} // namespace TEST_SOURCE
