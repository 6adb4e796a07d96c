// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/testing/expect.h>
#include <dtensor/testing/fake_world.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <optional>

namespace dtensor::testing {
namespace TEST_SOURCE {

using test_text::error_of;

TEST(FakeWorld, ThisThreadIsOneRankAndThenNoneAgain) {
  with_fake_world(5, 256, [] {
    EXPECT_EQ(get_rank(), 5);
    EXPECT_EQ(get_world_size(), 256);
    const auto mesh = init_device_mesh(torch::kCPU, {64, 4}, {"dp", "tp"});
    EXPECT_EQ(mesh.get_local_rank("dp"), 1);
    EXPECT_EQ(get_group(mesh, "tp").rank(), 1);
    EXPECT_EQ(get_group(mesh, "dp").size(), 64);
  });
  EXPECT_EQ(get_rank(), 0);
  EXPECT_EQ(get_world_size(), 1);
}

// Shapes equal those of a real world of two ranks.
TEST(FakeWorld, EveryCollectiveGivesTheShapesOfARealOne) {
  const auto shapes = [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2});
    auto& group = get_group(mesh);
    const auto t = torch::ones({4, 6});
    const auto part = torch::ones({2});
    const bool first = group.rank() == 0;
    std::vector<std::vector<int64_t>> sizes;
    const auto note = [&](const torch::Tensor& result) {
      sizes.push_back(result.sizes().vec());
    };
    note(group.all_reduce(t, ReduceOp::kSum));
    note(group.all_gather(t, 1));
    note(group.reduce_scatter(t, 0, ReduceOp::kSum));
    note(group.all_to_all({part, part})[1]);
    note(group.broadcast(t, 1));
    note(group.scatter(
        first ? std::vector<torch::Tensor>{part, part}
              : std::vector<torch::Tensor>{},
        part,
        0));
    sizes.push_back({static_cast<int64_t>(group.gather(t, 0).size())});
    group.send(part, 1 - group.rank());
    note(group.recv(part, 1 - group.rank()));
    group.barrier();
    sizes.push_back(
        {static_cast<int64_t>(group.all_gather_strings("x").size())});
    return sizes;
  };
  std::vector<std::vector<int64_t>> real, fake;
  run_ranks(2, [&](int64_t rank) {
    auto mine = shapes();
    if (rank == 0) {
      real = std::move(mine);
    }
  });
  with_fake_world(0, 2, [&] { fake = shapes(); });
  EXPECT_EQ(fake, real);
}

TEST(FakeWorld, AReductionKeepsThisRanksValuesAndAGatherIsZero) {
  with_fake_world(1, 2, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2});
    auto& group = get_group(mesh);
    const auto t = torch::arange(4.0);
    expect_close(group.all_reduce(t, ReduceOp::kSum), t);
    expect_close(group.reduce_scatter(t, 0, ReduceOp::kSum), t.slice(0, 2, 4));
    expect_close(group.all_gather(t, 0), torch::zeros({8}));
  });
}

TEST(FakeWorld, OperatorsAndTheirGradientsStayOnThisRank) {
  with_fake_world(0, 256, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {256});
    const auto x =
        distribute_tensor(torch::ones({512, 3}), mesh, {Shard(0)}, std::nullopt)
            .detach()
            .requires_grad_();
    const auto y = DTensor(x * 2);
    expect_layout(y, "S(0)");
    EXPECT_EQ(y.full_tensor().sizes(), (std::vector<int64_t>{512, 3}));
    y.backward(torch::ones_like(y));
    expect_close(DTensor(x.grad()).to_local(), torch::full({2, 3}, 2.0));
  });
}

TEST(FakeWorld, RefusesARankOutsideAndNesting) {
  EXPECT_EQ(
      error_of([] { with_fake_world(4, 4, [] {}); }),
      "[with_fake_world] no rank 4 in a world of 4. Use ranks from 0 to the "
      "world size minus 1.");
  with_fake_world(0, 4, [] {
    EXPECT_THAT(
        error_of([] { with_fake_world(0, 4, [] {}); }),
        ::testing::HasSubstr("Ranks cannot be nested"));
    EXPECT_THAT(
        error_of([] { run_ranks(2, [] {}); }),
        ::testing::HasSubstr("Ranks cannot be nested"));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
