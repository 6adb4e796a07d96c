// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/mesh_groups_impl.h>
#include <dtensor/comm/measure_costs.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;
using Costs = std::map<std::string, LinkCost>;

TEST(MeasureCosts, GivesAllRanksOfTheMeshTheSameNumbers) {
  run_ranks(5, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 1, 2}, {"dp", "cp", "tp"});
    const Costs costs = measure_costs(mesh);
    if (rank == 4) { // outside of the mesh
      EXPECT_TRUE(costs.empty());
      return;
    }
    ASSERT_EQ(costs.size(), 2);
    double sum = 0;
    for (const char* const dim : {"dp", "tp"}) {
      const LinkCost& cost = costs.at(dim);
      EXPECT_GT(cost.latency_us, 0);
      EXPECT_GT(cost.gigabytes_per_s, 0);
      sum += cost.latency_us + cost.gigabytes_per_s;
    }
    const auto mine = torch::tensor(sum, torch::kDouble);
    for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
      const auto largest =
          get_group(mesh, dim).all_reduce(mine, ReduceOp::kMax);
      EXPECT_EQ(largest.item<double>(), sum);
    }
  });
}

TEST(MeasureCosts, FitTheOptionsOfAMesh) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const Costs costs = measure_costs(mesh);
    const auto priced = init_device_mesh(at::kCPU, {2}, {}, {.cost = costs});
    EXPECT_EQ(detail::link_cost(priced, 0), costs.at("0"));
  });
}

TEST(MeasureCosts, NeedGroups) {
  EXPECT_EQ(
      error_of([] {
        measure_costs(DeviceMesh(at::kCPU, {2}, {0, 1}));
      }),
      "[get_group] this mesh has no process groups. Make it with "
      "init_device_mesh.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
