// SPDX-License-Identifier: BSD-3-Clause
// Errors of programs that cannot use MPI, and the effect of one rank's failure
// on the others, under the launcher of each MPI that was found. The launchers
// kill all ranks when one has died, so the errors of surviving ranks are not
// tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace TEST_SOURCE {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Launchers that CMake has found, by MPI implementation.
const std::map<std::string, std::string> kLaunchers = {DTENSOR_MPI_LAUNCHERS};

// Output of a command and its exit code. This is the code of a rank, or of the
// signal with which mpirun ended the other ranks.
struct Ended {
  int code = 0;
  std::string output;
};

Ended run(const std::string& command) {
  Ended ended;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (size_t length = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.output.append(buffer.data(), length);
  }
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

class Mpi : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs three ranks with a fault in rank 1.
  static Ended ranks(
      const std::string& fault,
      const std::string& backend = "mpi",
      const std::string& variables = "") {
    return run(
        "DTENSOR_FLIGHT_RECORD=off " + variables + " " +
        kLaunchers.at(GetParam()) + " -n 3 " DTENSOR_FAULT_RANK " --fault " +
        fault + " --backend " + backend);
  }
};

// A process may create several worlds, although MPI can be initialized only
// once.
TEST_P(Mpi, EndsWellAfterAnyNumberOfWorlds) {
  for (const std::string times : {"1", "3"}) {
    const auto ended = ranks("none --times " + times);
    EXPECT_EQ(ended.code, 0) << ended.output;
  }
}

TEST_P(Mpi, ARankThatThrowsSaysWhy) {
  const auto ended = ranks("throw");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(
      ended.output,
      AllOf(
          HasSubstr("[all_reduce] MPI failed on \"tp\" (ranks 0, 1, 2): [mpi] "
                    "another rank of the group failed"),
          HasSubstr("failed: no such row"),
          HasSubstr("number 11 of rank 0"),
          HasSubstr("number 11 of rank 2")));
}

TEST_P(Mpi, ARankThatHangsIsNamedAtTheTimeout) {
  const auto ended = ranks("hang --timeout-ms 2000");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(
      ended.output,
      AllOf(
          HasSubstr("[mpi] timed out after 2000 ms. Call the same collectives "
                    "on every rank, or raise the timeout"),
          ::testing::ContainsRegex("rank 1 \\(process [0-9]+ on [^ ]+\\) is "
                                   "running but has not reported an error")));
}

TEST_P(Mpi, AnotherCollectiveIsNamedWhereRanksCompare) {
  const auto ended = ranks("other", "mpi", "TORCH_DISTRIBUTED_DEBUG=DETAIL");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(
      ended.output,
      AllOf(
          HasSubstr("ranks of \"tp\" disagree"),
          HasSubstr("rank 1 calls broadcast")));
}

TEST_P(Mpi, AnotherMpiThanTheLaunchersIsRejected) {
  for (const auto& [other, launcher] : kLaunchers) {
    if (other != GetParam()) {
      const auto ended = ranks("none", other);
      EXPECT_EQ(ended.code, 7);
      EXPECT_THAT(
          ended.output,
          AllOf(
              HasSubstr("[mpi] this process is rank 1 of 3, but "),
              HasSubstr(" reports rank 0 of 1. Start all ranks with the mpirun "
                        "of this MPI, or use \"gloo\".")));
    }
  }
}

TEST_P(Mpi, ThreadsAreNotRanks) {
  const auto ended = ranks("none --ranks-per-process 2");
  EXPECT_EQ(ended.code, 7);
  EXPECT_THAT(
      ended.output,
      HasSubstr(
          "[init_process_group] MPI supports one rank per process, got 2. Use "
          "another backend than \"mpi\", or one rank per process."));
}

// Checks the sockets of ranks that mpirun starts and that communicate by Gloo:
// a socket of rank 0's store, and a socket of each rank.
TEST_P(Mpi, RanksOfOneHostListenOnLoopbackAlone) {
  const auto ended = ranks("none --show-listeners", "gloo");
  EXPECT_EQ(ended.code, 0) << ended.output;
  std::istringstream lines(ended.output);
  int listeners = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("listens at ") != std::string::npos) {
      EXPECT_THAT(line, HasSubstr("listens at 0100007F:"));
      ++listeners;
    }
  }
  EXPECT_EQ(listeners, 4) << ended.output;
}

// The library in a folder without its MPI module.
TEST_P(Mpi, AModuleThatWasNotBuiltIsNamed) {
  const auto folder = fs::path(::testing::TempDir()) /
      ("dtensor_alone_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const fs::path library = DTENSOR_LIBRARY;
  fs::create_symlink(library, folder / library.filename());
  const auto ended = ranks("none", "mpi", "LD_LIBRARY_PATH=" + folder.string());
  fs::remove_all(folder);
  EXPECT_EQ(ended.code, 7);
  EXPECT_THAT(
      ended.output,
      HasSubstr(
          "[mpi] dtensor was built without " + GetParam() +
          ": there is no libdtensor_" + GetParam() + ".so in " +
          folder.string() + ". Install its development package (lib" +
          GetParam() + "-dev) and rebuild dtensor, or use \"gloo\"."));
}

TEST_P(Mpi, NoLauncherOfMpi) {
  const auto ended =
      run("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
          "MASTER_PORT=1 " DTENSOR_FAULT_RANK " --fault none --backend mpi");
  EXPECT_EQ(ended.code, 7);
  EXPECT_EQ(
      ended.output,
      "[mpi] this process was not started by an MPI launcher: "
      "OMPI_COMM_WORLD_RANK, PMI_RANK and PMIX_RANK are not set. Start it with "
      "mpirun, set the backend to \"openmpi\" or \"mpich\", or use "
      "\"gloo\".\n");
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& [name, launcher] : kLaunchers) {
    result.push_back(name);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    Mpi,
    ::testing::ValuesIn(names()),
    [](const auto& launcher) { return launcher.param; });

} // namespace TEST_SOURCE
