// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/mesh_groups_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

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

TEST(InitDeviceMesh, HasAGroupForEachDimension) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    EXPECT_EQ(
        error_of([&] { get_group(mesh); }),
        "[get_group] a mesh dimension is required, as the mesh has several: "
        "(dp=1, tp=2). Pass a dimension or its name.");
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
      "[init_device_mesh] mesh sizes must be positive: (1, 0). Use sizes of at "
      "least 1.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] { init_device_mesh(at::kCPU, {}); }),
      "[init_device_mesh] the shape is empty. Pass at least one size.");
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
      "[get_group] this mesh has no process groups. Make it with "
      "init_device_mesh.");
  EXPECT_EQ(
      error_of([] {
        detail::joint_group(DeviceMesh(at::kCPU, {1, 1}, {0}), {0, 1});
      }),
      "[get_group] this mesh has no process groups. Make it with "
      "init_device_mesh.");
  EXPECT_EQ(
      error_of<c10::IndexError>(
          [] { get_group(init_device_mesh(at::kCPU, {1}), 1); }),
      "[get_group] no dimension 1: the mesh has 1. Use one from -1 to 0.");
}

TEST(MakeDeviceMesh, TakesATensorOfRanks) {
  run_ranks(4, [] {
    const auto mesh = make_device_mesh(
        at::kCPU, torch::tensor({{3, 1}, {2, 0}}).t(), {"a", "b"});
    EXPECT_EQ(mesh.ranks(), (Ranks{3, 2, 1, 0}));
    EXPECT_EQ(mesh.shape(), (Ranks{2, 2}));
    EXPECT_EQ(
        error_of<c10::ValueError>(
            [] { make_device_mesh(at::kCPU, torch::ones({2})); }),
        "[make_device_mesh] expected an integer tensor of the mesh's shape, "
        "got CPUFloatType with 1 dimension. Pass the ranks of the mesh.");
  });
}

int64_t sum_of_ranks(Group& group) {
  return group.all_reduce(torch::tensor({get_rank()}), ReduceOp::kSum)
      .item<int64_t>();
}

TEST(InitDeviceMesh, DimensionsTakenApartAndPutTogetherCommunicate) {
  run_ranks(8, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 4}, {"dp", "tp"});
    const auto apart = mesh.unflatten("tp", {2, 2}, {"cp", "tp"});
    EXPECT_EQ(sum_of_ranks(get_group(apart, "tp")), rank / 2 * 4 + 1);
    const auto turned = DeviceMesh::concatenate({apart["tp"], apart["dp"]});
    EXPECT_EQ(get_group(turned, "dp").ranks(), get_group(mesh, 0).ranks());
    EXPECT_EQ(sum_of_ranks(get_group(turned, 0)), rank / 2 * 4 + 1);
  });
}

TEST(InitDeviceMesh, FlattenedDimensionsCommunicateBesideOthers) {
  run_ranks(8, [](int64_t rank) {
    const auto mesh =
        init_device_mesh(at::kCPU, {2, 2, 2}, {"replicate", "shard", "cp"});
    const auto flat = mesh[{"shard", "cp"}].flatten("shard_cp");
    const auto both = mesh[{"replicate", "shard_cp"}];
    EXPECT_EQ(both.ranks(), mesh.ranks());
    EXPECT_EQ(&get_group(both, "shard_cp"), &get_group(flat));
    EXPECT_EQ(&get_group(both, "replicate"), &get_group(mesh, "replicate"));
    EXPECT_EQ(sum_of_ranks(get_group(both, "shard_cp")), rank < 4 ? 6 : 22);
    EXPECT_EQ(sum_of_ranks(get_group(both, 0)), rank % 4 * 2 + 4);
  });
}

TEST(GetAllGroups, GivesOneForEachDimension) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto groups = get_all_groups(mesh);
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0].get(), &get_group(mesh, "dp"));
    EXPECT_EQ(groups[1].get(), &get_group(mesh, "tp"));
  });
}

TEST(FromGroup, CommunicatesByThatGroup) {
  run_ranks(4, [](int64_t rank) {
    const auto group = new_group({rank % 2, rank % 2 + 2}, "mine");
    const auto mesh = from_group(group, at::kCPU, {"x"});
    EXPECT_EQ(mesh.ranks(), group->ranks());
    EXPECT_EQ(mesh.mesh_dim_names(), (std::vector<std::string>{"x"}));
    EXPECT_EQ(&get_group(mesh), group.get());
    EXPECT_EQ(from_group(group, at::kCPU, {"x"}), mesh);
    // A different set of groups makes a different mesh.
    EXPECT_NE(make_device_mesh(at::kCPU, {2}, mesh.ranks(), {"x"}), mesh);
    const auto other = new_group({rank / 2 * 2, rank / 2 * 2 + 1}, "row");
    const auto both =
        from_group({other, group}, at::kCPU, {2, 2}, {0, 2, 1, 3}, {"a", "b"});
    EXPECT_EQ(&get_group(both, "b"), group.get());
    EXPECT_EQ(&get_group(both["a"]), other.get());
  });
}

TEST(FromGroup, RefusesOtherGroups) {
  run_ranks(4, [](int64_t rank) {
    const auto row = new_group({rank / 2 * 2, rank / 2 * 2 + 1}, "row");
    EXPECT_EQ(
        error_of<c10::ValueError>([] { from_group(nullptr, at::kCPU); }),
        "[from_group] the group is null. Pass a group from new_group().");
    if (rank == 0) {
      EXPECT_EQ(
          error_of<c10::ValueError>([&] {
            from_group({row, row}, at::kCPU, {2, 2}, {0, 1, 2, 3}, {"a", "b"});
          }),
          "[from_group] the group for mesh dim \"a\" has ranks [0, 1], but the "
          "mesh has [0, 2]. Pass a group of these ranks, in this order.");
      EXPECT_EQ(
          error_of<c10::ValueError>([&] {
            from_group({row}, at::kCPU, {2, 2}, {0, 1, 2, 3});
          }),
          "[from_group] got 1 group for a mesh of 2 dimensions. Pass one per "
          "dimension.");
    }
  });
}

TEST(BackendOverride, AppliesToSingleDimensions) {
  run_ranks(2, [] {
    EXPECT_EQ(
        error_of<c10::ValueError>([] {
          init_device_mesh(
              at::kCPU,
              {1, 2},
              {"dp", "tp"},
              {.backend_override = {{"tp", {.backend = "gloo"}}}});
        }),
        "[new_group] group \"tp\" cannot have the backend \"gloo\": this "
        "run_ranks has only one backend. Leave `backend` empty.");
    EXPECT_EQ(
        error_of<c10::ValueError>([] {
          init_device_mesh(
              at::kCPU,
              {2},
              {},
              {.backend_override = {{"tp", {.backend = "gloo"}}}});
        }),
        "[init_device_mesh] backend_override has an unknown mesh dimension "
        "\"tp\": the dimensions are 0. Use one of them.");
    const auto patient = init_device_mesh(
        at::kCPU,
        {2},
        {"tp"},
        {.backend_override = {{"tp", {.timeout = std::chrono::hours(1)}}}});
    EXPECT_EQ(sum_of_ranks(get_group(patient)), 1);
    EXPECT_NE(patient, init_device_mesh(at::kCPU, {2}, {"tp"}));
  });
}

TEST(MeshCost, CarriesOverToJoinedAndSplitDimensions) {
  run_ranks(4, [] {
    const LinkCost dp{30, 12};
    const LinkCost tp{7, 3};
    const auto mesh = init_device_mesh(
        at::kCPU, {1, 4}, {"dp", "tp"}, {.cost = {{"dp", dp}, {"tp", tp}}});
    EXPECT_EQ(detail::link_cost(mesh.flatten(), 0), tp);
    const auto apart = mesh.unflatten("tp", {2, 2}, {"cp", "ep"});
    EXPECT_EQ(detail::link_cost(apart, 1), tp);
    EXPECT_EQ(detail::link_cost(apart, 2), tp);
    const auto both = apart[{"cp", "ep"}].flatten("cp_ep");
    EXPECT_EQ(detail::link_cost(both, 0), tp);
    const auto half = init_device_mesh(
        at::kCPU, {2, 2}, {"a", "b"}, {.cost = {{"a", {30, 12}}}});
    const LinkCost slowest = slower_of({30, 12}, detail::link_cost(half, 1));
    EXPECT_EQ(detail::link_cost(half.flatten(), 0), slowest);
    const auto plain = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    EXPECT_EQ(plain.flatten(), init_device_mesh(at::kCPU, {4}, {"a_b"}));
  });
}

TEST(MeshCost, IsSetPerDimension) {
  run_ranks(2, [] {
    const auto with = [](const std::string& dim, LinkCost cost) {
      return init_device_mesh(
          at::kCPU, {1, 2}, {"dp", "tp"}, {.cost = {{dim, cost}}});
    };
    const auto mesh = with("tp", {.latency_us = 7, .gigabytes_per_s = 3});
    EXPECT_EQ(detail::link_cost(mesh, 1), (LinkCost{7, 3}));
    EXPECT_EQ(detail::link_cost(mesh, 0), LinkCost());
    EXPECT_EQ(detail::link_cost(mesh["tp"], 0), (LinkCost{7, 3}));
    EXPECT_NE(mesh, init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"}));
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { with("pp", {}); }),
        "[init_device_mesh] cost has an unknown mesh dimension \"pp\": the "
        "dimensions are dp, tp. Use one of them.");
    EXPECT_EQ(
        error_of<c10::ValueError>([&] {
          with("tp", {7, 0});
        }),
        "[init_device_mesh] the cost of mesh dim \"tp\" is not positive: 7 us, "
        "0 GB/s. Pass a latency in microseconds and a bandwidth in GB/s.");
  });
}

TEST(JointGroup, CommunicatesOverSeveralDimensions) {
  run_ranks(12, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 3, 2}, {"a", "b", "c"});
    Group& group = detail::joint_group(mesh, {0, 2});
    EXPECT_EQ(group.label(), "a_c");
    EXPECT_EQ(&group, &detail::joint_group(mesh, {0, 2}));
    const int64_t b = mesh.get_local_rank("b");
    EXPECT_EQ(
        group.ranks(),
        (std::vector<int64_t>{2 * b, 2 * b + 1, 2 * b + 6, 2 * b + 7}));
    EXPECT_EQ(sum_of_ranks(group), 8 * b + 14) << rank;
    EXPECT_TRUE(detail::can_join(mesh, 0, 2));
    const auto given =
        from_group(get_all_groups(mesh), at::kCPU, {2, 3, 2}, mesh.ranks());
    EXPECT_FALSE(detail::can_join(given, 0, 2));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
