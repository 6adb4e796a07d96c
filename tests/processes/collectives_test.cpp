// SPDX-License-Identifier: BSD-3-Clause
// The contract of groups on ranks that a launcher started, over the backend
// with which the suite was started. Also collectives of ranks that do not wait,
// and leaks.
#include <dtensor/comm/group.h>
#include <dtensor/comm/world.h>
#include <gtest/gtest.h>
#include <tests/comm/contract/suite.h>
#include <tests/processes/on_ranks.h>
#include <torch/torch.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Returns kComparedCalls if the environment asks for it.
Needs most_needs() {
  const char* debug = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return debug != nullptr && std::string(debug) == "DETAIL"
      ? Needs::kComparedCalls
      : Needs::kPeers;
}

const ContractRanks kLaunched = {"all_ranks", [](const auto& check) {
                                   on_ranks([&] { check(*world()); });
                                 }};

INSTANTIATE_TEST_SUITE_P(
    Processes,
    Contract,
    on_backend(most_needs(), {kLaunched}),
    name_of);

int64_t size() {
  return get_world_size();
}

// A rank may return from entering a collective without waiting. The first rank
// makes no further call until each of the other ranks, which do wait, has
// created a file.
TEST_ON_RANKS(Processes, OthersNeedNotWait) {
  namespace fs = std::filesystem;
  const GroupPtr group = world();
  const auto base = fs::path(testing::TempDir()) /
      group->all_gather_strings("dtensor_" + std::to_string(getpid())).front();
  const auto file = [&](int64_t rank) {
    return base.string() + "." + std::to_string(rank);
  };
  const auto mine = input_of(get_rank(), {50'000});
  auto sum = group->all_reduce_async(mine.clone(), ReduceOp::kSum);
  auto all = group->all_gather_async(mine.clone(), 0, 50'000 * size());
  if (get_rank() > 0) {
    expect_equal(all->wait(), torch::cat(inputs({50'000})));
    expect_equal(sum->wait(), reduced(inputs({50'000}), ReduceOp::kSum));
    std::ofstream(file(get_rank())) << "done";
    return;
  }
  sum = nullptr;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int64_t rank = 1; rank < size(); ++rank) {
    while (!fs::exists(file(rank))) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "rank " << rank;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    fs::remove(file(rank));
  }
}

int64_t resident_kb() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmRSS:") {
  }
  int64_t size = 0;
  status >> size;
  return size;
}

int64_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// DTENSOR_SOAK=n runs n rounds.
TEST_ON_RANKS(Processes, ManyCollectivesLeaveNothingBehind) {
  const GroupPtr group = world();
  const char* wanted = std::getenv("DTENSOR_SOAK");
  const int64_t rounds = wanted != nullptr ? std::atoll(wanted)
      : size() <= 3                        ? 500
                                           : 100;
  int64_t memory = 0;
  int64_t files = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    if (i == rounds / 4) {
      memory = resident_kb();
      files = descriptors();
    }
    const auto mine = there(torch::full({1 + i % 100}, i % 1000, at::kLong));
    const auto sum = group->all_reduce(mine, ReduceOp::kSum);
    ASSERT_EQ(sum[0].item<int64_t>(), i % 1000 * size()) << "round " << i;
  }
  // A transport may open one more descriptor of its own; a leak would add one
  // per round.
  EXPECT_LE(descriptors(), files + 4);
  EXPECT_LE(resident_kb() - memory, 16384);
}

} // namespace TEST_SOURCE
} // namespace dtensor
