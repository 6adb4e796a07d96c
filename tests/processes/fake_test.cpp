// SPDX-License-Identifier: BSD-3-Clause
// One process that acts as any rank of a fake world without other processes.
#include <dtensor/comm/group.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/run_world.h>
#include <dtensor/comm/world.h>
#include <gmock/gmock.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <cstdlib>

namespace dtensor {
namespace TEST_SOURCE {

class FakeProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    init_process_group({.backend = "fake", .rank = 1, .world_size = 8});
  }
  void TearDown() override {
    destroy_process_group();
  }
};

TEST_F(FakeProcess, IsOneOfManyAndAloneOnItsHost) {
  EXPECT_EQ(get_rank(), 1);
  EXPECT_EQ(get_world_size(), 8);
  EXPECT_EQ(get_node_local_rank(), 0);
  const auto mesh = init_device_mesh(torch::kCPU, {2, 4}, {"dp", "tp"});
  EXPECT_EQ(get_group(mesh, "tp").ranks(), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(get_group(mesh, "dp").ranks(), (std::vector<int64_t>{1, 5}));
}

TEST_F(FakeProcess, KeepsItsOwnOfAReductionAndGathersZeros) {
  const auto group = new_group({0, 1, 2, 3, 4, 5, 6, 7}, "world");
  const auto mine = torch::arange(16.0);
  EXPECT_TRUE(torch::equal(group->all_reduce(mine, ReduceOp::kSum), mine));
  EXPECT_TRUE(torch::equal(
      group->reduce_scatter(mine, 0, ReduceOp::kSum), mine.slice(0, 2, 4)));
  EXPECT_TRUE(torch::equal(
      group->reduce_scatter(mine, 0, ReduceOp::kSum, {5, 4, 3, 2, 1, 1, 0, 0}),
      mine.slice(0, 5, 9)));
  EXPECT_TRUE(torch::equal(group->all_gather(mine, 0), torch::zeros({128})));
  EXPECT_EQ(
      group->all_gather(torch::empty({2, 3}, at::kMeta), 1).sizes(),
      (std::vector<int64_t>{2, 24}));
  group->barrier();
  EXPECT_EQ(group->all_gather_strings("me"), std::vector<std::string>(8, "me"));
}

TEST_F(FakeProcess, MayChooseTheBackendOfAGroup) {
  const auto group = new_group({0, 1, 2}, "three", {.backend = "fake"});
  EXPECT_EQ(group->all_gather(torch::ones(2), 0).sizes(), at::IntArrayRef(6));
}

// The smallest shard of a model that no machine here could hold.
TEST_F(FakeProcess, IsAnyOfVeryMany) {
  destroy_process_group();
  init_process_group({.backend = "fake", .rank = 65535, .world_size = 65536});
  const auto mesh = init_device_mesh(torch::kCPU, {8192, 8}, {"dp", "tp"});
  const auto part = torch::ones({2, 2});
  EXPECT_EQ(get_group(mesh, "tp").all_gather(part, 0).size(0), 16);
  EXPECT_EQ(get_group(mesh, "dp").rank(), 8191);
}

TEST(FakeThreads, AreNotRanks) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  RunWorldOptions options;
  options.processes.backend = "fake";
  options.ranks_per_process = 2;
  EXPECT_THAT(
      test_text::error_of([&] {
        run_world(
            1, [] {}, options);
      }),
      ::testing::HasSubstr("[init_process_group] the fake backend supports one "
                           "rank per process, got 2. Use another backend than "
                           "\"fake\", or one rank per process."));
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
}

} // namespace TEST_SOURCE
} // namespace dtensor
