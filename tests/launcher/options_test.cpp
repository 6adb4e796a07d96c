// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>

#include "launched.h"

namespace launcher {
namespace {

using Arguments = std::vector<std::string>;

void expect_error(const Arguments& arguments, const std::string& message) {
  Launched job(arguments);
  EXPECT_EQ(job.finish(), 2);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(job.err(), "[dtensor-run] " + message + "\n");
}

TEST(Options, RefuseNumbersOutOfRange) {
  expect_error({"-n", "0", "true"}, "-n is too small: 0. Pass at least 1.");
  expect_error(
      {"-n", "1", "--max-restarts", "-1", "true"},
      "--max-restarts is too small: -1. Pass at least 0.");
  expect_error(
      {"-n", "1", "--nnodes", "2", "--node-rank", "2", "true"},
      "--node-rank is out of range: 2 of 2 nodes. Pass 0 to 1.");
}

TEST(Options, RefuseNumbersThatNoMachineHas) {
  expect_error(
      {"-n", "100000000", "true"},
      "-n is too large: 100000000. Pass at most 4096.");
  expect_error(
      {"-n", "4096", "--nnodes", "257", "--rdzv", "h:1", "true"},
      "--nnodes is too large: 257. Pass at most 256.");
  expect_error(
      {"-n", "1", "--join-timeout", "0", "true"},
      "--join-timeout is too small: 0. Pass at least 1.");
  expect_error(
      {"-n", "1", "--grace", "2000000000", "true"},
      "--grace is too large: 2000000000. Pass at most 31536000.");
}

TEST(Options, RejectUnknownOptions) {
  expect_error(
      {"true"},
      "invalid command line: --nproc-per-node is required. See dtensor-run "
      "--help.");
  expect_error(
      {"-n", "two", "true"},
      "invalid command line: Could not convert: --nproc-per-node = two. See "
      "dtensor-run --help.");
  expect_error(
      {"-n", "1", "--bogus", "true"},
      "no such option: --bogus. See dtensor-run --help.");
}

TEST(Options, RejectProgramsThatCannotRun) {
  expect_error({"-n", "1"}, "no program was given. Pass it after the options.");
  expect_error(
      {"-n", "1", "no-such-program"},
      "program not found in PATH: no-such-program. Pass its path, such as "
      "./no-such-program.");
  expect_error(
      {"-n", "1", "/no/such/program"},
      "no such program: /no/such/program. Check its path.");
  expect_error(
      {"-n", "1", "/etc/passwd"},
      "the program is not executable: /etc/passwd. Try chmod +x.");
}

TEST(Options, RejectInvalidAddresses) {
  expect_error(
      {"-n", "1", "--nnodes", "2", "true"},
      "--rdzv is missing: there are 2 nodes. Pass --rdzv HOST:PORT, an address "
      "of node 0, on every node.");
  for (const auto* text : {"host", "host:29500x", "host:65536"}) {
    expect_error(
        {"-n", "1", "--rdzv", text, "true"},
        std::string("--rdzv is not HOST:PORT: ") + text +
            ". Pass an address of node 0 and a port from 1 to 65535.");
  }
  // The address is from the block reserved for documentation: no host has it.
  expect_error(
      {"-n", "1", "--rdzv", "192.0.2.1:29500", "true"},
      "cannot listen at 192.0.2.1:29500: Cannot assign requested address. Pass "
      "an address of this host, which is node 0, and a free port.");
}

TEST(Options, AreQuotedUpToALimit) {
  const std::string text(100000, 'x');
  for (const auto& arguments : std::vector<Arguments>{
           {"-n", text, "true"},
           {"-n", "1", text},
           {"-n", "1", "/" + text},
           {"-n", "1", "--" + text, "true"},
           {"-n", "1", "--rdzv", text, "true"},
           {"-n", "1", "--nnodes", "2", "--rdzv", text + ":80", "true"}}) {
    Launched job(arguments);
    EXPECT_EQ(job.finish(), 2);
    EXPECT_THAT(job.err(), testing::HasSubstr("xxx..."));
    EXPECT_LT(job.err().size(), 1000U);
  }
}

TEST(Options, LeaveWhatFollowsTheProgramToIt) {
  Launched job({"-n", "1", "echo", "-n", "--grace", "--", "-h"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out(), "[0] --grace -- -h\n");
  Launched separated({"-n", "1", "--", "echo", "-h"});
  EXPECT_EQ(separated.finish(), 0);
  EXPECT_EQ(separated.out(), "[0] -h\n");
}

TEST(Options, AreExplained) {
  Launched job({"--help"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(job.out(), testing::HasSubstr("--max-restarts"));
}

} // namespace
} // namespace launcher
