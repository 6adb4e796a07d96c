// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "expect_error.h"

namespace dtensor {
namespace {

using test::error_of;
using Ranks = std::vector<int64_t>;

TEST(InitDeviceMesh, GivesOneGroupPerDimension) {
  run_ranks(6, [](int64_t rank) {
    const DeviceMesh mesh = init_device_mesh(at::kCPU, {2, 3}, {"dp", "tp"});
    const int64_t row = rank / 3;
    const int64_t column = rank % 3;
    EXPECT_EQ(get_group(mesh, 0).ranks(), (Ranks{column, column + 3}));
    EXPECT_EQ(
        get_group(mesh, 1).ranks(), (Ranks{row * 3, row * 3 + 1, row * 3 + 2}));
    EXPECT_EQ(get_group(mesh, -1).label(), "tp");
    EXPECT_EQ(get_group(mesh, "dp").label(), "dp");
    EXPECT_EQ(get_group(mesh, "dp").rank(), mesh.get_local_rank("dp"));
    EXPECT_EQ(mesh.get_local_rank("tp"), column);
    EXPECT_EQ(
        get_group(mesh, "tp")
            .all_reduce(torch::tensor({rank}), ReduceOp::kSum)
            .item<int64_t>(),
        row * 9 + 3);
  });
}

TEST(InitDeviceMesh, GroupsDifferInTheirDimensionAlone) {
  run_ranks(12, [](int64_t) {
    const DeviceMesh mesh = init_device_mesh(at::kCPU, {2, 3, 2});
    const auto mine = *mesh.get_coordinate();
    for (int64_t dim = 0; dim < 3; ++dim) {
      Group& group = get_group(mesh, dim);
      EXPECT_EQ(group.label(), std::to_string(dim));
      ASSERT_EQ(group.size(), mesh.size(dim));
      EXPECT_EQ(group.rank(), mine[static_cast<size_t>(dim)]);
      for (int64_t i = 0; i < group.size(); ++i) {
        auto coordinate = mine;
        coordinate[static_cast<size_t>(dim)] = i;
        EXPECT_EQ(
            mesh.coordinate_of(group.ranks()[static_cast<size_t>(i)]),
            coordinate);
      }
    }
  });
}

TEST(InitDeviceMesh, SlicesAndFlattenedDimensionsCommunicate) {
  run_ranks(8, [](int64_t rank) {
    const DeviceMesh mesh =
        init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
    EXPECT_EQ(
        get_group(mesh["tp"]).ranks(), (Ranks{rank / 2 * 2, rank / 2 * 2 + 1}));
    const DeviceMesh flat = mesh[{"dp", "tp"}].flatten();
    const int64_t first = rank / 4 * 4;
    EXPECT_EQ(
        get_group(flat).ranks(),
        (Ranks{first, first + 1, first + 2, first + 3}));
    EXPECT_EQ(get_group(flat).label(), "dp_tp");
    EXPECT_EQ(
        get_group(flat)
            .all_reduce(torch::tensor({rank}), ReduceOp::kSum)
            .item<int64_t>(),
        4 * first + 6);
  });
}

TEST(InitDeviceMesh, LeavesRanksOutside) {
  run_ranks(3, [](int64_t rank) {
    const DeviceMesh mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    EXPECT_EQ(mesh.contains_this_rank(), rank < 2);
    if (rank == 2) {
      EXPECT_EQ(
          error_of([&] { get_group(mesh); }),
          "[get_group] rank 2 is outside the mesh. Check contains_this_rank() "
          "first.");
    }
  });
}

TEST(InitDeviceMesh, IsOfItsWorld) {
  DeviceMesh kept;
  run_ranks(2, [&](int64_t rank) {
    const DeviceMesh mesh = init_device_mesh(at::kCPU, {2});
    EXPECT_TRUE(mesh == init_device_mesh(at::kCPU, {2}));
    if (rank == 0) {
      kept = mesh;
    }
  });
  run_ranks(2, [&](int64_t) {
    EXPECT_FALSE(kept == init_device_mesh(at::kCPU, {2}));
  });
  EXPECT_TRUE(
      init_device_mesh(at::kCPU, {1}) == init_device_mesh(at::kCPU, {1}));
}

TEST(MakeDeviceMesh, TakesRanksInAnyOrder) {
  run_ranks(4, [](int64_t rank) {
    const DeviceMesh mesh =
        make_device_mesh(at::kCPU, {2, 2}, {3, 1, 0, 2}, {"dp", "tp"});
    EXPECT_EQ(
        get_group(mesh, "tp").ranks(),
        rank == 3 || rank == 1 ? (Ranks{3, 1}) : (Ranks{0, 2}));
    EXPECT_EQ(
        get_group(mesh, "dp").ranks(),
        rank == 3 || rank == 0 ? (Ranks{3, 0}) : (Ranks{1, 2}));
  });
}

TEST(InitDeviceMesh, NeedsAFittingWorld) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        init_device_mesh(at::kCPU, {2, 2});
      }),
      "[init_device_mesh] a mesh of shape (2, 2) needs 4 ranks, but the world "
      "has 1. Start more ranks or make the mesh smaller.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        init_device_mesh(at::kCPU, {1, 0});
      }),
      "[init_device_mesh] every dimension needs a rank: (1, 0). Use positive "
      "sizes.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] { init_device_mesh(at::kCPU, {}); }),
      "[init_device_mesh] the shape is empty. Give the mesh at least one "
      "dimension.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] { make_device_mesh(at::kCPU, {1}, {4}); }),
      "[make_device_mesh] a mesh of shape (1) needs rank 4, but the world has "
      "1 "
      "rank. Start more ranks or make the mesh smaller.");
  EXPECT_THROW(
      init_device_mesh(at::kCPU, {1, 1}, {"tp", "tp"}), c10::ValueError);
  EXPECT_THROW(init_device_mesh(at::kCPU, {1, 1}, {"tp"}), c10::ValueError);
}

TEST(GetGroup, NeedsAMeshThatCommunicates) {
  EXPECT_EQ(
      error_of([] { get_group(DeviceMesh(at::kCPU, {1}, {0})); }),
      "[get_group] this mesh is a pure value without communication. Make it "
      "with init_device_mesh.");
  EXPECT_EQ(
      error_of<c10::IndexError>(
          [] { get_group(init_device_mesh(at::kCPU, {1}), 1); }),
      "[get_group] no dimension 1 in a mesh of 1. Use one from -1 to 0.");
}

} // namespace
} // namespace dtensor
