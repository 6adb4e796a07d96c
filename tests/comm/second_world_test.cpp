// SPDX-License-Identifier: BSD-3-Clause
// A second World implementation supports meshes, layouts and tensors (as in
// examples/01_layouts.cpp and 02_tensors.cpp) like run_ranks().
#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <tests/redistribute/expect_right.h>
#include <tests/redistribute/layouts.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <unistd.h>
#include <cstdio>

#include "store_ranks.h"

namespace dtensor {
namespace TEST_SOURCE {

// Runs `fn` on two ranks over a file store, as processes could.
void on_two_ranks(const std::function<void(const DeviceMesh&)>& fn) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      c10::str(::testing::TempDir(), "dtensor_world_", getpid(), test->name());
  test::on_store_ranks(
      2,
      [&] { return c10::make_intrusive<c10d::FileStore>(path, 2); },
      [&](int64_t) { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
  std::remove(path.c_str());
}

// Checks all pairs of layouts. A wrong local size fails, because a store keeps
// bytes without shapes.
void expect_all_right(
    const std::vector<int64_t>& shape,
    const std::vector<Sizes>& all_sizes,
    const std::vector<testing::Pair>& pairs,
    bool checks) {
  test::on_store_ranks(
      numel(shape),
      [&](int64_t) {
        const auto mesh = init_device_mesh(at::kCPU, shape);
        for (const Sizes& sizes : all_sizes) {
          for (const testing::Pair& pair : pairs) {
            const auto from = Spec::make(mesh, pair.from, sizes, at::kDouble);
            const auto to = Spec::make(mesh, pair.to, sizes, at::kDouble);
            if (can_redistribute(from, to)) {
              testing::expect_right(from, to);
            }
          }
        }
      },
      checks);
}

TEST(SecondWorld, HasMeshesAndLayouts) {
  on_two_ranks([](const DeviceMesh& mesh) {
    EXPECT_EQ(get_world_size(), 2);
    EXPECT_EQ(mesh.get_local_rank("tp"), get_rank());
    EXPECT_EQ(get_group(mesh, "tp").label(), "tp");
    EXPECT_EQ(mesh, init_device_mesh(at::kCPU, {2}, {"tp"}));
    const auto grid = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    EXPECT_EQ(grid["dp"].size(), 1);
    EXPECT_EQ(grid.flatten("all").size(), 2);
    const auto spec = Spec::make(mesh, {Shard(0)}, {5, 2}, at::kFloat);
    EXPECT_EQ(to_string(*spec), "f32[5, 2] on (tp=2): S(0)");
    EXPECT_EQ(spec->local_sizes()[0], get_rank() == 0 ? 3 : 2);
  });
}

TEST(SecondWorld, RedistributesBetweenLayouts) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto whole = torch::arange(15.0).view({5, 3});
    const std::vector<Placement> layouts = {Shard(0), Shard(1), Replicate()};
    for (const Placement& from : layouts) {
      const auto d = distribute_tensor(whole, mesh, {from});
      EXPECT_TRUE(torch::equal(full_tensor(d), whole));
      for (const Placement& to : layouts) {
        EXPECT_TRUE(torch::equal(full_tensor(redistribute(d, {to})), whole));
      }
    }
    const auto part = torch::full({1, 2}, static_cast<double>(get_rank()));
    EXPECT_EQ(DTensor::from_local(part, mesh, {Shard(0)}).size(0), 2);
    const auto sum = DTensor::from_local(part, mesh, {Partial("sum")});
    EXPECT_EQ(full_tensor(sum).sum().item<double>(), 2.0);
    const auto rows = to_local(redistribute(sum, {Shard(0)}));
    EXPECT_EQ(rows.size(0), get_rank() == 0 ? 1 : 0);
  });
}

TEST(SecondWorld, RedistributesEveryPairOfLayouts) {
  const std::vector<Placement> kinds = {
      Replicate(),
      Shard(0),
      Shard(1),
      Partial("sum"),
      Partial("avg"),
      Partial("max"),
      StridedShard(0, 2),
      StridedShard(1, 2),
      StridedShard(1, 6)};
  const auto pairs = testing::all_pairs(testing::all_layouts(1, kinds));
  expect_all_right({2}, {{5, 7}, {6, 12}, {0, 4}}, pairs, true);
  expect_all_right({3}, {{4, 6}, {5, 7}, {1, 3}}, pairs, false);
  const auto grids = testing::some_pairs(testing::all_layouts(2, kinds), 60);
  expect_all_right({2, 2}, {{5, 7}, {8, 12}}, grids, false);
}

TEST(SecondWorld, RedistributesLater) {
  test::on_store_ranks(2, [](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto whole = torch::arange(15.0).view({5, 3});
    const auto rows = distribute_tensor(whole, mesh, {Shard(0)});
    const auto later = redistribute(rows, {Shard(1)}, {.async_op = true});
    EXPECT_TRUE(torch::equal(full_tensor(later), whole));
    const auto all = redistribute(rows, {Replicate()}, {.async_op = true});
    EXPECT_TRUE(torch::equal(to_local(all), whole));
  });
}

TEST(SecondWorld, ComputesAndDifferentiates) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = torch::arange(24.0, at::kDouble).view({4, 6});
    const auto b = torch::arange(12.0, at::kDouble).view({6, 2});
    const DTensor product(torch::mm(
        distribute_tensor(a, mesh, {Shard(1)}),
        distribute_tensor(b, mesh, {Shard(0)})));
    EXPECT_EQ(product.placements()[0], Partial("sum"));
    EXPECT_TRUE(torch::allclose(product.full_tensor(), torch::mm(a, b)));
    const auto w =
        distribute_tensor(a.clone().requires_grad_(), mesh, {Shard(0)});
    (w * w).sum().backward();
    const DTensor grad(w.grad());
    EXPECT_EQ(grad.placements()[0], Shard(0));
    EXPECT_TRUE(torch::equal(grad.full_tensor(), 2 * a));
    EXPECT_THROW(w + torch::ones({4, 6}, at::kDouble), c10::Error);
  });
}

TEST(SecondWorld, RefusesWhatBelongsToAnother) {
  DeviceMesh of_rank_0;
  on_two_ranks([&](const DeviceMesh& mesh) {
    if (get_rank() == 0) {
      of_rank_0 = mesh;
    }
    get_group(mesh).barrier();
    if (get_rank() == 1) {
      EXPECT_THROW(get_group(of_rank_0).barrier(), c10::Error);
      EXPECT_THROW(dtensor::ones({4}, of_rank_0), c10::Error);
    }
    get_group(mesh).barrier();
  });
  EXPECT_THROW(get_group(of_rank_0).barrier(), c10::Error);
}

} // namespace TEST_SOURCE
} // namespace dtensor
