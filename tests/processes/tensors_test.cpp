// SPDX-License-Identifier: BSD-3-Clause
// DTensors over the backend with which the suite was started: every pair of
// layouts, and a model that trains like the plain model.
#include <dtensor/dtensor.h>
#include <tests/parallel/modules.h>
#include <tests/processes/on_ranks.h>
#include <tests/redistribute/expect_right.h>
#include <tests/redistribute/layouts.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using namespace dtensor::testing;

// Returns the shape of a mesh: two-dimensional in a world of four.
std::vector<int64_t> grid() {
  const int64_t size = get_world_size();
  return size % 2 == 0 ? std::vector<int64_t>{2, size / 2}
                       : std::vector<int64_t>{1, size};
}

void expect_all_right(
    const std::vector<int64_t>& shape,
    const std::vector<Sizes>& all_sizes,
    const std::vector<Pair>& pairs) {
  const auto mesh = init_device_mesh(at::kCPU, shape);
  for (const Sizes& sizes : all_sizes) {
    for (const Pair& pair : pairs) {
      const auto from = Spec::make(mesh, pair.from, sizes, at::kDouble);
      const auto to = Spec::make(mesh, pair.to, sizes, at::kDouble);
      if (can_redistribute(from, to)) {
        expect_right(from, to);
      }
    }
  }
}

TEST_ON_RANKS(ProcessTensors, RedistributeBetweenAllLayouts) {
  const std::vector<Placement> kinds = {
      Replicate(),
      Shard(0),
      Shard(1),
      Partial("sum"),
      Partial("avg"),
      Partial("max"),
      StridedShard(1, 2)};
  expect_all_right(
      {get_world_size()},
      {{5, 7}, {8, 12}, {0, 4}},
      all_pairs(all_layouts(1, kinds)));
  expect_all_right(
      grid(), {{5, 7}, {8, 12}}, some_pairs(all_layouts(2, kinds), 40));
}

TEST_ON_RANKS(ProcessTensors, RedistributeLater) {
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  const auto whole = uniform({5, 7}, 3);
  const auto rows = distribute_tensor(whole, mesh, {Shard(0)});
  const auto columns = redistribute(rows, {Shard(1)}, {.async_op = true});
  const auto all = redistribute(rows, {Replicate()}, {.async_op = true});
  EXPECT_TRUE(torch::equal(to_local(all), whole));
  EXPECT_TRUE(torch::equal(full_tensor(columns), whole));
}

TEST_ON_RANKS(ProcessTensors, TrainAModelAsThePlainOneTrains) {
  const auto mesh = init_device_mesh(at::kCPU, grid(), {"dp", "tp"});
  auto plain = filled(Mlp(6, 7));
  torch::optim::AdamW reference(plain->parameters(), 1e-2);
  train(plain, reference);
  auto mine = filled(Mlp(6, 7));
  parallelize_module(*mine, mesh["tp"], mlp_plan());
  torch::optim::AdamW optimizer(mine->parameters(), 1e-2);
  train(mine, optimizer);
  expect_same_parameters(*mine, *plain);
}

// fully_shard shards parameters over all ranks, and over "dp" after tensor
// parallelism has sharded them over "tp".
TEST_ON_RANKS(ProcessTensors, TrainAModelThatNoRankHasWhole) {
  const auto mesh = init_device_mesh(at::kCPU, grid(), {"dp", "tp"});
  auto plain = filled(Mlp(6, 7));
  torch::optim::AdamW reference(plain->parameters(), 1e-2);
  train(plain, reference);
  for (const bool cuts_layers : {false, true}) {
    const auto data = cuts_layers ? mesh["dp"] : mesh.flatten();
    auto mine = filled(Mlp(6, 7));
    if (cuts_layers) {
      parallelize_module(*mine, mesh["tp"], mlp_plan());
    }
    fully_shard(*mine->w1, {.mesh = data});
    fully_shard(*mine, {.mesh = data});
    torch::optim::AdamW optimizer(mine->parameters(), 1e-2);
    train(mine, optimizer);
    expect_same_parameters(*mine, *plain);
  }
}

// Second derivatives are correct too.
TEST_ON_RANKS(ProcessTensors, DifferentiateTwice) {
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  const auto penalty = [](const at::Tensor& x) {
    const auto first = torch::autograd::grad(
        {(x * x * x).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum()}, {x})[0];
  };
  const auto whole = uniform({5, 3}, 4);
  const auto truth = penalty(whole.clone().requires_grad_());
  for (const Placement& layout : {Placement(Shard(0)), Placement(Shard(1))}) {
    const at::Tensor x =
        distribute_tensor(whole, mesh, {layout}).detach().requires_grad_();
    expect_close(penalty(x), truth, to_string(layout));
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
