// SPDX-License-Identifier: BSD-3-Clause
// Failures of one of three ranks, without a launcher. The other ranks end with
// an error that names the failed rank.
#include <tests/processes/faults.h>

namespace TEST_SOURCE {

using namespace dtensor::test_faults;

TEST_P(Faults, ARankThatDiesIsNamed) {
  for (const std::string fault : {"kill", "segv", "exit"}) {
    SCOPED_TRACE(fault);
    const auto ended = run(fault, 1);
    expect_report(
        ended,
        1,
        AllOf(
            names_rank(1),
            HasSubstr(") has ended"),
            HasSubstr("This was collective number 11 of rank "),
            HasSubstr("on \"tp\"")));
  }
}

// The other ranks do not wait until the timeout for a rank that has ended after
// its last collective. The rank that hosts the store does not wait either if
// another rank has thrown by then.
TEST_P(Faults, ARankThatEndsAfterItsLastCollectiveIsNotWaitedFor) {
  for (const std::string fault : {"exit", "kill", "throw"}) {
    for (const int culprit : {0, 1}) {
      SCOPED_TRACE(fault + " of rank " + std::to_string(culprit));
      const auto ended =
          run(fault, culprit, "OFF", /*round=*/5, {"--timeout-ms", "60000"});
      for (const Ended& rank : ended) {
        EXPECT_THAT(
            rank.output,
            Not(AnyOf(HasSubstr("timed out"), HasSubstr("60000ms"))));
      }
      expect_report(
          ended,
          culprit,
          AnyOf(
              HasSubstr("rank " + std::to_string(culprit) + " (process "),
              HasSubstr("the store cannot be reached")));
    }
  }
}

TEST_P(Faults, ARankThatThrowsNoExceptionIsNamed) {
  const auto ended = run("int", 1);
  EXPECT_EQ(ended[1].code, 8);
  expect_report(
      ended,
      1,
      HasSubstr(") failed: an exception not derived from std::exception"));
}

TEST_P(Faults, ARankWhoseThreadEndsIsNamed) {
  threads_ = 2;
  const auto ended = run("pthread_exit", 1);
  EXPECT_EQ(ended[1].code, 7);
  EXPECT_THAT(
      ended[1].output,
      HasSubstr(
          "rank 3: the thread of this rank was terminated by pthread_exit."));
  expect_report(
      ended,
      1,
      HasSubstr(") failed: its thread was terminated by pthread_exit"));
}

// A stopped rank stops its store too, so requests to the store get no answer.
TEST_P(Faults, AStoppedRankOfTheStoreIsReportedInTime) {
  const auto ended = run("stop", 0);
  expect_report(ended, 0, HasSubstr("the store does not answer"));
}

TEST_P(Faults, AForkedChildCannotCommunicate) {
  const auto ended = run("fork", 1);
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.code, 0) << rank.output;
  }
  EXPECT_THAT(
      ended[1].output,
      AllOf(
          HasSubstr("[barrier] this process was forked from rank 1 (process "),
          HasSubstr(", whose connections it cannot use."),
          HasSubstr("the child ended with 0")));
}

// A limit on file sizes (`ulimit -f`) also limits shared memory, which is a
// file.
TEST_P(Faults, AFileSizeLimitKillsNoRank) {
  const bool by_memory = GetParam() == "shm";
  const auto ended = run("none", 1, "OFF", 5, {"--file-bytes", "65536"});
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.code, by_memory ? 7 : 0) << rank.output;
    if (by_memory) {
      EXPECT_THAT(
          rank.output,
          AllOf(
              HasSubstr("bytes of shared memory: the file size limit is 65536. "
                        "Raise that limit (ulimit -f)"),
              Not(HasSubstr("did not join"))));
    }
  }
}

TEST_P(Faults, AFileSizeLimitFallsBackToGloo) {
  const auto ended =
      run("none", 1, "OFF", 5, {"--file-bytes", "65536", "--backend", "auto"});
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.code, 0) << rank.output;
  }
  EXPECT_THAT(
      ended[0].output,
      HasSubstr("Falling back to the inter-host backend for "));
}

TEST_P(Faults, TheErrorOfAThrowingRankIsReported) {
  for (const int culprit : {0, 2}) {
    SCOPED_TRACE(culprit);
    const auto ended = run("throw", culprit);
    const auto& wrong = ended[static_cast<size_t>(culprit)];
    EXPECT_EQ(wrong.code, 7);
    EXPECT_THAT(wrong.output, HasSubstr("no such row"));
    expect_report(
        ended,
        culprit,
        AllOf(names_rank(culprit), HasSubstr("failed: no such row")));
  }
}

// The other ranks end at once, not at the timeout, even if the failed rank
// continues and its models still exist.
TEST_P(Faults, ARankThatThrowsBeforeItsGroupMeetsIsNamed) {
  const auto ended = run("throw", 1, "OFF", /*round=*/-1);
  expect_report(
      ended,
      1,
      AllOf(
          HasSubstr("Meanwhile rank 1 (process "),
          HasSubstr("failed: no such row.")));
}

TEST_P(Faults, ARankThatThrowsAndKeepsItsGroupsEndsTheOthers) {
  const auto ended = run("throw", 1, "OFF", 5, {"--keep"});
  expect_report(
      ended,
      1,
      AllOf(
          HasSubstr("rank 1 (process "),
          HasSubstr("failed: no such row"),
          Not(HasSubstr("timed out after ")),
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
    expect_report(
        ended,
        culprit,
        AllOf(
            HasSubstr(name + " (process "), HasSubstr("failed: no such row")));
  }
}

TEST_P(Faults, AProcessOfSeveralRanksDies) {
  threads_ = 2;
  const auto ended = run("kill", 1);
  expect_report(
      ended, 1, AllOf(HasSubstr("rank 3 (process "), HasSubstr("has ended")));
}

TEST_P(Faults, TheRankOfTheStoreDies) {
  const auto ended = run("kill", 0);
  expect_report(
      ended,
      0,
      AnyOf(
          HasSubstr(") has ended"), HasSubstr("the store cannot be reached")));
}

TEST_P(Faults, ARankThatHangsIsNamedAtTheTimeout) {
  const auto ended = run("hang", 1);
  expect_report(
      ended,
      1,
      AllOf(
          names_rank(1),
          HasSubstr(") is running but has not reported an error")));
}

// Timeouts of groups and of calls expire long before the world's.
TEST_P(Faults, GroupsAndCallsHaveTimeoutsOfTheirOwn) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{
           {"--group-timeout-ms", "500"},
           {"--call-timeout-ms", "500"},
           {"--group-timeout-ms", "60000", "--call-timeout-ms", "500"}}) {
    auto options = more;
    options.insert(options.end(), {"--timeout-ms", "30000"});
    const auto ended = run("hang", 1, "OFF", 5, options);
    expect_report(
        ended,
        1,
        AllOf(
            AnyOf(HasSubstr("timed out after 500 ms"), HasSubstr("500ms")),
            AllOf(
                names_rank(1),
                HasSubstr(") is running but has not reported an error"))));
  }
}

TEST_P(Faults, AnAbsentRankIsNamed) {
  const auto ended = run("absent", 1);
  expect_report(
      ended,
      1,
      HasSubstr("[init_process_group] rank 1 of 3 did not join within 4 s"));
}

// The late rank finds that the other ranks have ended, and the store with rank
// 0.
TEST_P(Faults, ALateRankIsNamedAndFindsNoJob) {
  const auto ended = run("late", 1);
  expect_report(
      ended,
      1,
      HasSubstr("[init_process_group] rank 1 of 3 did not join within 4 s"));
  EXPECT_EQ(ended[1].code, 7);
  EXPECT_THAT(
      ended[1].output,
      AllOf(
          HasSubstr("[init_process_group] the store at 127.0.0.1:"),
          HasSubstr(" cannot be reached")));
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

// Gloo throws in a thread of its own, where no caller could catch the error.
TEST_P(Faults, AMessageOfAnotherSizeEndsNoProcess) {
  for (const std::string fault : {"long", "short"}) {
    SCOPED_TRACE(fault);
    const auto ended = run(fault, 1);
    bool names_checks = false;
    for (const Ended& rank : ended) {
      EXPECT_EQ(rank.code, 7) << rank.output;
      names_checks |= rank.output.find(
                          "Set TORCH_DISTRIBUTED_DEBUG=DETAIL to compare the "
                          "collectives") != std::string::npos;
      EXPECT_THAT(
          rank.output,
          HasSubstr(
              GetParam() == "gloo" ? "gloo failed on \"tp\"" : "disagree: "));
    }
    EXPECT_EQ(names_checks, GetParam() == "gloo");
  }
}

TEST_P(Faults, AnErrorInAThreadOfGlooEndsNoProcess) {
  const auto ended = run("gloo_thread", 1, "OFF", 5, {"--backend", "gloo"});
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.code, 0) << rank.output;
  }
}

TEST_P(Faults, TheLastCollectivesAreOnRecord) {
  const auto ended = run("kill", 1);
  for (const int rank : {0, 2}) {
    SCOPED_TRACE(ended[static_cast<size_t>(rank)].output);
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

// Checks that ranks listen only on loopback: rank 0 for its store, and each
// rank for Gloo.
TEST_P(Faults, RanksOfOneHostListenOnLoopbackAlone) {
  const auto by_address = set_variables_;
  const auto by_mpirun = [](int rank, int) {
    setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", std::to_string(kRanks).c_str(), 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(kRanks).c_str(), 1);
  };
  for (const bool has_address : {true, false}) {
    SCOPED_TRACE(has_address);
    set_variables_ =
        has_address ? by_address : std::function<void(int, int)>(by_mpirun);
    const auto ended = run("none", 1, "OFF", 5, {"--show-listeners"});
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& [code, output] = ended[static_cast<size_t>(rank)];
      EXPECT_EQ(code, 0) << output;
      std::istringstream lines(output);
      int listeners = 0;
      for (std::string line; std::getline(lines, line); ++listeners) {
        EXPECT_THAT(line, ::testing::StartsWith("listens at 0100007F:"));
      }
      EXPECT_EQ(
          listeners, (rank == 0 ? 1 : 0) + (GetParam() == "gloo" ? 1 : 0));
    }
  }
}

TEST_P(Faults, ARendezvousFileIsRemovedAfterSuccess) {
  const auto file = folder_ / "meeting";
  const auto ended =
      run("none", 1, "OFF", 5, {"--init-method", "file://" + file.string()});
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.code, 0) << rank.output;
  }
  EXPECT_FALSE(fs::exists(file));
}

// Any rank dies or throws at any point. DTENSOR_SWEEP=n makes n runs.
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
    expect_report(
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
