// SPDX-License-Identifier: BSD-3-Clause
// Tests of regions: they are a single autograd node if all ranks record the
// same graph inside, and support every use of autograd.
#include <dtensor/debug/comm_debug_mode.h>
#include <tests/error_of.h>
#include <tests/graph_nodes.h>

#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;
using test_text::nodes_below;
using ::testing::ElementsAre;
using torch::autograd::grad;

at::Tensor
leaf(const at::Tensor& plain, const DeviceMesh& mesh, const Placement& layout) {
  return in_layout(plain, mesh, {layout}).detach().requires_grad_(true);
}

TEST(RegionTest, IsTheNodeOfItsOperator) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto q = leaf(uniform({2, 4, 3, 5}, 1), mesh, Shard(1));
    EXPECT_THAT(
        nodes_below(at::scaled_dot_product_attention(q, q, q)),
        ElementsAre("ScaledDotProductFlashAttentionForCpuBackward0"));
    const auto table = leaf(uniform({6, 4}, 2), mesh, Shard(1));
    EXPECT_THAT(
        nodes_below(at::embedding(
            table, in_layout(at::arange(3), mesh, {Replicate()}))),
        ElementsAre("EmbeddingBackward0"));
    const auto x = leaf(uniform({2, 3, 4}, 3), mesh, Shard(2));
    const auto w = leaf(uniform({4, 6}, 4), mesh, Shard(0));
    EXPECT_THAT(
        nodes_below(at::matmul(x, w)), ElementsAre("UnsafeViewBackward0"));
  });
}

// A plain bias of one element counts as replicated. Every rank's local call
// gives one term of its gradient.
TEST(RegionTest, SumsTheGradientOfAPlainNumber) {
  const auto plain_x = variable({5, 4}, 1);
  const auto plain_w = variable({1, 4}, 2);
  const auto plain_b = variable({1}, 3);
  const auto truth =
      grad({at::linear(plain_x, plain_w, plain_b).sum()}, {plain_b});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const bool all_learn : {false, true}) {
      for (const auto& [of_x, of_w] : std::vector<std::array<Placement, 2>>{
               {Shard(0), Replicate()},
               {Replicate(), Replicate()},
               {Shard(1), Shard(1)}}) {
        const auto x = leaf(plain_x, mesh, of_x).requires_grad_(all_learn);
        const auto w = leaf(plain_w, mesh, of_w).requires_grad_(all_learn);
        const auto b = plain_b.detach().clone().requires_grad_(true);
        at::linear(x, w, b).sum().backward();
        ASSERT_TRUE(b.grad().defined());
        EXPECT_TRUE(close(full(b.grad()), truth[0]));
        EXPECT_EQ(w.grad().defined(), all_learn);
      }
    }
  });
}

TEST(RegionTest, UnequalShardsMakeSeveralRegions) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = leaf(uniform({2, 3, 5}, 3), mesh, Shard(2));
    const auto w = leaf(uniform({5, 6}, 4), mesh, Shard(0));
    EXPECT_THAT(
        nodes_below(at::matmul(x, w)),
        ElementsAre(
            "EnterBackward",
            "FromLocalBackward",
            "MmBackward0",
            "UnsafeViewBackward0",
            "ViewBackward0"));
  });
}

// A graph task that requests only some inputs works, although it has no nodes
// inside the region.
TEST(RegionTest, ComputesRequestedGradients) {
  const auto plain_x = variable({2, 3, 4}, 1);
  const auto plain_w = variable({4, 6}, 2);
  const auto y = at::matmul(plain_x, plain_w);
  const auto weight = uniform(y.sizes(), 3);
  const auto truth = grad({y}, {plain_x, plain_w}, {weight});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = leaf(plain_x, mesh, Replicate());
    const auto w = leaf(plain_w, mesh, Shard(1));
    const auto mine = at::matmul(x, w);
    const auto seed = in_layout(weight, mesh, {Shard(2)});
    const auto of_w = grad({mine}, {w}, {seed}, /*retain_graph=*/true);
    EXPECT_TRUE(close(full(of_w[0]), truth[1]));
    const auto of_x = grad({mine}, {x}, {seed}, /*retain_graph=*/true);
    EXPECT_TRUE(close(full(of_x[0]), truth[0]));
    const auto both = grad({mine}, {w, x}, {seed});
    EXPECT_TRUE(close(full(both[0]), truth[1]));
    EXPECT_TRUE(close(full(both[1]), truth[0]));
    EXPECT_FALSE(x.grad().defined());
    EXPECT_FALSE(w.grad().defined());
  });
}

TEST(RegionTest, GivesItsTensorsBackAfterThePass) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = leaf(uniform({2, 3, 4}, 3), mesh, Shard(2));
    const auto w = leaf(uniform({4, 6}, 4), mesh, Shard(0));
    const auto y = at::matmul(x, w).sum();
    y.backward();
    EXPECT_THAT(
        test_text::error_of([&] { y.backward(); }),
        ::testing::HasSubstr(
            "Trying to backward through the graph a second time"));
  });
}

// Regions are twice differentiable. Nodes inside are reached in two ways:
// through the region's own node, and through the tensors that they saved.
TEST(RegionTest, IsTwiceDifferentiable) {
  const auto penalty = [](const Tensors& t) {
    const auto y = at::matmul(t[0], t[1]).pow(3).sum();
    const auto first = grad({y}, {t[0], t[1]}, {}, std::nullopt, true);
    const auto both = first[0].pow(2).sum() + first[1].pow(2).sum();
    return grad({both}, {t[0], t[1]});
  };
  const auto plain_x = variable({2, 3, 4}, 1);
  const auto plain_w = variable({4, 6}, 2);
  const auto truth = penalty({plain_x, plain_w});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& [of_x, of_w] :
         std::vector<std::pair<Placement, Placement>>{
             {Replicate(), Shard(1)},
             {Shard(2), Shard(0)},
             {Shard(0), Replicate()},
             {Shard(1), Shard(1)}}) {
      const auto mine =
          penalty({leaf(plain_x, mesh, of_x), leaf(plain_w, mesh, of_w)});
      EXPECT_TRUE(close(full(mine[0]), truth[0]));
      EXPECT_TRUE(close(full(mine[1]), truth[1]));
    }
  });
}

// An operator whose gradient uses its result is twice differentiable, because
// the saved result leads back to the node inside.
TEST(RegionTest, OfAResultThatItSavesIsTwiceDifferentiable) {
  const auto penalty = [](const at::Tensor& x) {
    const auto y = at::cumprod(x, 0).pow(2).sum();
    const auto first = grad({y}, {x}, {}, std::nullopt, true)[0];
    return grad({(first * x).pow(2).sum()}, {x})[0];
  };
  const auto plain = variable({4, 6}, 1);
  const auto truth = penalty(plain);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout :
         {Placement(Replicate()),
          Placement(Shard(1)),
          Placement(Partial(ReduceOp::kSum))}) {
      EXPECT_TRUE(close(full(penalty(leaf(plain, mesh, layout))), truth));
    }
  });
}

// Regions are twice differentiable if a rank has no elements. LibTorch's
// formulas for empty tensors omit dependencies that other ranks have, but all
// ranks must redistribute the same gradients.
TEST(RegionTest, IsTwiceDifferentiableWhereARankHasNoElements) {
  using Scan = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Scan>> scans = {
      {"cummin", [](const auto& x) { return std::get<0>(x.cummin(1)); }},
      {"cummax", [](const auto& x) { return std::get<0>(x.cummax(1)); }},
      {"cumprod", [](const auto& x) { return x.cumprod(1); }}};
  const auto penalty = [](const at::Tensor& x, const at::Tensor& cut, Scan f) {
    const auto y = f(cut).pow(3).sum();
    const auto first = grad({y}, {x}, {}, std::nullopt, true)[0];
    return grad({first.pow(2).sum()}, {x})[0];
  };
  for (const auto& entry : scans) {
    const auto& name = entry.first;
    const auto& scan = entry.second;
    const auto plain = variable({2, 3, 1}, 1);
    const auto truth = penalty(plain, plain, scan);
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      const auto x = leaf(plain, mesh, Shard(0));
      const auto cut = DTensor(x).redistribute({Shard(2)});
      EXPECT_TRUE(close(full(penalty(x, cut, scan)), truth)) << name;
    });
  }
}

TEST(RegionTest, TakesOneTensorTwice) {
  const auto plain = variable({2, 4, 4}, 1);
  at::matmul(plain, plain).pow(2).sum().backward();
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout : {Placement(Shard(0)), Placement(Shard(2))}) {
      const auto x = leaf(plain, mesh, layout);
      at::matmul(x, x).pow(2).sum().backward();
      EXPECT_TRUE(close(full(x.grad()), plain.grad()));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
