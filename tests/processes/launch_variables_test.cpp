// SPDX-License-Identifier: BSD-3-Clause
// Every launcher variable with invalid values: empty, text, negative, too
// large, and contradicting another variable.
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/run_world.h>
#include <gmock/gmock.h>
#include <tests/comm/expect_error.h>

#include <atomic>
#include <map>
#include <string>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

detail::LaunchEnv read(const Variables& variables) {
  return detail::read_launch_env([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error(const Variables& variables) {
  return test::error_of<c10::ValueError>([&] { read(variables); });
}

const Variables kTorchrun = {
    {"RANK", "1"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "oak"},
    {"MASTER_PORT", "29500"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"DTENSOR_RANKS_PER_PROCESS", "2"}};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kPmi = {
    {"PMI_RANK", "1"},
    {"PMI_SIZE", "4"},
    {"MPI_LOCALNRANKS", "4"}};
const Variables kSlurm = {
    {"SLURM_PROCID", "1"},
    {"SLURM_NTASKS", "4"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NUM_NODES", "1"}};

// Numeric variable of a launcher, with its smallest and largest valid value.
struct Number {
  const Variables& others;
  const char* name;
  int64_t least;
  int64_t most;
};

const std::vector<Number> kNumbers = {
    {kTorchrun, "RANK", 0, 1048575},
    {kTorchrun, "WORLD_SIZE", 1, 1048576},
    {kTorchrun, "LOCAL_WORLD_SIZE", 1, 1048576},
    {kTorchrun, "MASTER_PORT", 1, 65535},
    {kTorchrun, "TORCHELASTIC_RESTART_COUNT", 0, 2147483647},
    {kTorchrun, "DTENSOR_RANKS_PER_PROCESS", 1, 4096},
    {kOpenMpi, "OMPI_COMM_WORLD_RANK", 0, 1048575},
    {kOpenMpi, "OMPI_COMM_WORLD_SIZE", 1, 1048576},
    {kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, 1048576},
    {kPmi, "PMI_RANK", 0, 1048575},
    {kPmi, "PMI_SIZE", 1, 1048576},
    {kPmi, "MPI_LOCALNRANKS", 1, 1048576},
    {kSlurm, "SLURM_PROCID", 0, 1048575},
    {kSlurm, "SLURM_NTASKS", 1, 1048576},
    {kSlurm, "SLURM_STEP_NUM_NODES", 1, 1048576}};

TEST(LaunchVariables, ThatAreNotNumbersAreNamedWithTheirValues) {
  const std::vector<std::string> bad = {
      "",
      " ",
      "x",
      "1x",
      " 1",
      "1 ",
      "+1",
      "0x1",
      "1.0",
      "1e3",
      "-1",
      "-9223372036854775809",
      "9223372036854775807",
      "9223372036854775808",
      "99999999999999999999999",
      "nan",
      "\n"};
  for (const Number& number : kNumbers) {
    read(number.others); // valid
    for (const std::string& value : bad) {
      Variables variables = number.others;
      variables[number.name] = value;
      EXPECT_EQ(
          error(variables),
          c10::str(
              "[init_process_group] ",
              number.name,
              " is not a number from ",
              number.least,
              " to ",
              number.most,
              ": \"",
              value,
              "\". Start the program with a launcher, or set it to a number in "
              "this range."));
    }
  }
}

TEST(LaunchVariables, OutOfRangeAreErrors) {
  for (const Number& number : kNumbers) {
    for (const int64_t value : {number.least - 1, number.most + 1}) {
      Variables variables = number.others;
      variables[number.name] = std::to_string(value);
      EXPECT_THAT(
          error(variables),
          HasSubstr(c10::str(
              "] ", number.name, " is not a number from ", number.least)))
          << value;
    }
  }
}

TEST(LaunchVariables, QuoteNoMoreThanTheBeginningOfAValue) {
  Variables variables = kTorchrun;
  variables["RANK"] = std::string(100'000, '7');
  EXPECT_EQ(
      error(variables),
      "[init_process_group] RANK is not a number from 0 to 1048575: \"" +
          std::string(80, '7') +
          "...\". Start the program with a launcher, or set it to a number in "
          "this range.");
}

TEST(LaunchVariables, OfASizeWithoutARankNameTheRank) {
  EXPECT_EQ(
      error({{"WORLD_SIZE", "2"}}),
      "[init_process_group] WORLD_SIZE is \"2\" and RANK is not set. Set both, "
      "start the program with a launcher, or unset WORLD_SIZE to run one "
      "rank.");
  EXPECT_THAT(
      error({{"OMPI_COMM_WORLD_SIZE", "2"}}),
      HasSubstr("OMPI_COMM_WORLD_RANK is not set"));
  EXPECT_THAT(error({{"PMI_SIZE", "2"}}), HasSubstr("PMI_RANK is not set"));
  // Another launcher's variables take precedence.
  Variables mpirun = kOpenMpi;
  mpirun["WORLD_SIZE"] = "2";
  EXPECT_EQ(read(mpirun).size, 4);
  // A shell in a Slurm allocation is a single rank.
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).size, 1);
}

TEST(LaunchVariables, OfARankWithoutASizeNameTheSize) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"RANK", "1"}}, "RANK is set and WORLD_SIZE is not"},
      {{{"OMPI_COMM_WORLD_RANK", "1"}},
       "OMPI_COMM_WORLD_RANK is set and OMPI_COMM_WORLD_SIZE is not"},
      {{{"PMI_RANK", "1"}}, "PMI_RANK is set and PMI_SIZE is not"},
      {{{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}},
       "SLURM_PROCID is set and SLURM_NTASKS is not"}};
  for (const auto& [variables, text] : cases) {
    EXPECT_THAT(error(variables), HasSubstr(text));
  }
}

TEST(LaunchVariables, AtOddsWithEachOther) {
  const auto with = [](const char* name, const char* value) {
    Variables variables = kTorchrun;
    variables[name] = value;
    return error(variables);
  };
  EXPECT_EQ(
      with("RANK", "4"),
      "[init_process_group] RANK is 4 and WORLD_SIZE is 4. Ranks range from 0 "
      "to the size minus 1.");
  EXPECT_EQ(
      with("LOCAL_WORLD_SIZE", "5"),
      "[init_process_group] LOCAL_WORLD_SIZE is 5 and WORLD_SIZE is 4. A host "
      "cannot have more ranks than the world.");
  EXPECT_EQ(
      with("MASTER_ADDR", ""),
      "[init_process_group] MASTER_ADDR is \"\" and MASTER_PORT 29500. Set "
      "both, to where rank 0 can listen, or neither.");
  Variables large = kTorchrun;
  large["WORLD_SIZE"] = "1048576";
  EXPECT_EQ(
      error(large),
      "[init_process_group] the world has 2097152 ranks, more than the maximum "
      "of 1048576. Start fewer ranks.");
}

TEST(LaunchVariables, MakeANameOfAnyJob) {
  Variables variables = kTorchrun;
  variables["TORCHELASTIC_RUN_ID"] = "blue\nranks\t\x1b[2J";
  EXPECT_EQ(read(variables).job, "blue_ranks__[2J");
  variables["TORCHELASTIC_RUN_ID"] = std::string(100'000, 'x') + "1";
  const std::string one = read(variables).job;
  variables["TORCHELASTIC_RUN_ID"] = std::string(100'000, 'x') + "2";
  EXPECT_LE(one.size(), 128U);
  EXPECT_NE(one, read(variables).job);
}

TEST(LaunchVariables, DistinguishStepsOfOneSlurmJob) {
  Variables variables = kSlurm;
  variables["SLURM_JOB_ID"] = "77";
  EXPECT_EQ(read(variables).job, "77.0");
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_EQ(read(variables).job, "77.1");
}

// Environment variables that are set for a scope.
class Environment {
 public:
  explicit Environment(const Variables& variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) {
      unsetenv(name.c_str());
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Variables variables_;
};

TEST(LaunchVariables, AreErrorsOfRunWorldToo) {
  const auto error_of_run = [] {
    return test::error_of<c10::ValueError>([] { run_world(2, [] {}); });
  };
  {
    const Environment environment(Variables{{"WORLD_SIZE", "2"}});
    EXPECT_THAT(
        error_of_run(), HasSubstr("WORLD_SIZE is \"2\" and RANK is not set"));
    EXPECT_THAT(
        test::error_of<c10::ValueError>([] { init_process_group(); }),
        HasSubstr("WORLD_SIZE is \"2\" and RANK is not set"));
  }
  {
    const Environment environment(Variables{
        {"RANK", "0"},
        {"WORLD_SIZE", "1"},
        {"DTENSOR_RANKS_PER_PROCESS", "1000000000"}});
    EXPECT_EQ(
        error_of_run(),
        "[init_process_group] DTENSOR_RANKS_PER_PROCESS is not a number from 1 "
        "to 4096: \"1000000000\". Start the program with a launcher, or set it "
        "to a number in this range.");
  }
  {
    const Environment environment(
        Variables{{"RANK", "0"}, {"WORLD_SIZE", "100000000"}});
    EXPECT_THAT(
        error_of_run(),
        HasSubstr("WORLD_SIZE is not a number from 1 to 1048576"));
  }
}

TEST(LaunchVariables, OfASingleProcessNeedNoAddressForItsThreads) {
  const Environment environment(Variables{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DTENSOR_RANKS_PER_PROCESS", "2"}});
  std::atomic<int64_t> sum{0};
  run_world(5, [&] { sum += get_rank() + 10 * get_world_size(); });
  EXPECT_EQ(sum, 1 + 40);
}

TEST(LaunchVariables, ThatDoNotCountTheRanksOfThisHostAreNamed) {
  const auto error_of_run = [](const Variables& variables) {
    const Environment environment(variables);
    return test::error_of<c10::ValueError>([] { run_world(1, [] {}); });
  };
  const auto expected = [](const std::string& why) {
    return "[init_process_group] no rendezvous address for 2 ranks: " + why +
        ", so they may be on several hosts. Set MASTER_ADDR and MASTER_PORT, "
        "or use an init_method.";
  };
  Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(error_of_run(variables), expected("LOCAL_WORLD_SIZE is not set"));
  variables["LOCAL_WORLD_SIZE"] = "1";
  EXPECT_EQ(error_of_run(variables), expected("LOCAL_WORLD_SIZE is \"1\""));
  EXPECT_EQ(
      error_of_run(
          {{"SLURM_PROCID", "0"},
           {"SLURM_NTASKS", "2"},
           {"SLURM_STEP_ID", "0"},
           {"SLURM_STEP_NUM_NODES", "2"}}),
      expected("SLURM_STEP_NUM_NODES is \"2\""));
}

// Options of the program complete the variables.
TEST(LaunchVariables, AreCompletedByWhatTheProgramPasses) {
  for (const auto& variable : Variables{{"WORLD_SIZE", "1"}, {"RANK", "0"}}) {
    const Environment environment(Variables{variable});
    init_process_group({.rank = 0, .world_size = 1});
    EXPECT_EQ(get_world_size(), 1);
    destroy_process_group();
  }
}

TEST(LaunchVariables, BoundOptionsToo) {
  EXPECT_EQ(
      test::error_of<c10::ValueError>([] {
        init_process_group(
            {.backend = "fake", .rank = 0, .world_size = 100'000'000});
      }),
      "[init_process_group] the world has 100000000 ranks, more than the "
      "maximum of 1048576. Start fewer ranks.");
  EXPECT_EQ(
      test::error_of<c10::ValueError>([] { run_ranks(1'000'000'000, [] {}); }),
      "[run_ranks] too many ranks: 1000000000 in this process, 1000000000 in "
      "total. Pass at most 4096 per process and 1048576 in total.");
  const Environment environment(Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_THAT(
      test::error_of<c10::ValueError>(
          [] { run_world(1, [] {}, {.ranks_per_process = 1'000'000'000}); }),
      HasSubstr("too many ranks: 1000000000 in this process"));
}

TEST(LaunchVariables, OfALaunchersStoreWithoutAnAddress) {
  const Environment environment(Variables{
      {"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(
      test::error_of<c10::ValueError>([] { init_process_group(); }),
      "[init_process_group] TORCHELASTIC_USE_AGENT_STORE is True, but the "
      "address of the launcher's store is not set. Set MASTER_ADDR and "
      "MASTER_PORT, or unset it.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
