// SPDX-License-Identifier: BSD-3-Clause
// A process that dies while all save: the others end, and what has a name is
// whole.
#include <dtensor/checkpoint/checkpoint.h>
#include <tests/processes/faults.h>
#include <torch/torch.h>

namespace TEST_SOURCE {

using namespace dtensor::test_faults;

using SavingFaults = Faults;

TEST_P(SavingFaults, ARankThatDiesLeavesWholeCheckpoints) {
  for (int culprit = 0; culprit < kRanks; ++culprit) {
    SCOPED_TRACE(culprit);
    const auto saves = folder_ / ("saves_" + std::to_string(culprit));
    fs::create_directories(saves);
    setenv("DTENSOR_TEST_SAVES", saves.c_str(), 1);
    // In parts, and in full.
    const auto ended = run("kill", culprit, "OFF", /*round=*/3 + culprit % 2);
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

INSTANTIATE_TEST_SUITE_P(
    Over,
    SavingFaults,
    ::testing::Values("gloo", "shm"),
    [](const auto& backend) { return backend.param; });

} // namespace TEST_SOURCE
