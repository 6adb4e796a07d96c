// SPDX-License-Identifier: BSD-3-Clause
// A process that dies while all ranks save. The other ranks end, and every
// visible checkpoint is complete.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <tests/processes/faults.h>
#include <torch/torch.h>

#include <iostream>

namespace TEST_SOURCE {

using namespace dtensor::test_faults;

class SavingFaults : public Faults {
 protected:
  // Kills the culprit `delay` microseconds after it has begun its save number
  // `round`. Every second save is a full checkpoint.
  void kill_and_check(int culprit, int round, int delay) {
    const auto saves = folder_ / "saves";
    fs::remove_all(saves);
    fs::create_directories(saves);
    setenv("DTENSOR_TEST_SAVES", saves.c_str(), 1);
    setenv("DTENSOR_TEST_DELAY", std::to_string(delay).c_str(), 1);
    const auto ended = run("kill", culprit, "OFF", round);
    expect_report(
        ended,
        culprit,
        HasSubstr("rank " + std::to_string(culprit) + " (process "));
    for (const auto& entry : fs::directory_iterator(saves)) {
      in_between_ += entry.path().extension() == ".saving";
    }
    expect_whole(saves, round);
  }

  // Number of kills that left a folder that was being written.
  int in_between_ = 0;

 private:
  // Checks that all saves before `round` exist and that all visible checkpoints
  // are valid.
  static void expect_whole(const fs::path& saves, int round) {
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
    EXPECT_GE(found, round);
    EXPECT_LE(found, round + 1);
    const auto last = dtensor::latest_checkpoint(saves.string());
    EXPECT_EQ(
        last.value_or("none"), saves / ("step_" + std::to_string(found - 1)));
  }
};

TEST_P(SavingFaults, ARankThatDiesLeavesCompleteCheckpoints) {
  for (int culprit = 0; culprit < kRanks; ++culprit) {
    SCOPED_TRACE(culprit);
    kill_and_check(culprit, /*round=*/3 + culprit % 2, /*delay=*/0);
  }
}

// DTENSOR_SWEEP=n makes n runs.
TEST_P(SavingFaults, AtAnyMomentOfASave) {
  const char* const wanted = std::getenv("DTENSOR_SWEEP");
  const int runs = wanted == nullptr ? 3 : std::atoi(wanted);
  std::mt19937 random(11);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < runs; ++i) {
    const int culprit = below(kRanks);
    const int round = 1 + below(4);
    const int delay = below(20'000);
    SCOPED_TRACE(
        "rank " + std::to_string(culprit) + " in round " +
        std::to_string(round) + " after " + std::to_string(delay) + " us");
    kill_and_check(culprit, round, delay);
  }
  std::cout << runs << " kills, " << in_between_
            << " with a folder that was being written\n";
}

INSTANTIATE_TEST_SUITE_P(
    Over,
    SavingFaults,
    ::testing::Values("gloo", "shm"),
    [](const auto& backend) { return backend.param; });

} // namespace TEST_SOURCE
