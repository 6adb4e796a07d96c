// SPDX-License-Identifier: BSD-3-Clause
// Dropout drops the same elements in every layout.
#include <dtensor/random/random.h>

#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

struct Dropped {
  at::Tensor value;
  at::Tensor grad;
};

Dropped drop(const at::Tensor& x, double p, bool in_place) {
  manual_seed(8);
  auto leaf = x.detach();
  leaf.set_requires_grad(true);
  at::Tensor y;
  if (in_place) {
    y = leaf * 1;
    torch::nn::functional::dropout(
        y, torch::nn::functional::DropoutFuncOptions().p(p).inplace(true));
  } else {
    y = torch::nn::functional::dropout(
        leaf, torch::nn::functional::DropoutFuncOptions().p(p));
  }
  (y * y).sum().backward();
  return {full(y.detach()), full(leaf.grad())};
}

TEST(DropoutTest, DropsTheSameInEveryLayout) {
  const auto x = uniform({5, 6}, 1);
  for (const bool in_place : {false, true}) {
    for (const double p : {0.0, 0.4, 1.0}) {
      Dropped truth;
      Failures failures;
      for (const auto ranks : {1, 2, 3, 4}) {
        run_ranks(ranks, [&] {
          const auto mesh = init_device_mesh(at::kCPU, {ranks});
          for (const auto& layout :
               {Replicate(), Shard(0), Shard(1), Partial(ReduceOp::kSum)}) {
            const auto mine = drop(in_layout(x, mesh, {layout}), p, in_place);
            if (!truth.value.defined()) {
              truth = mine; // on one rank
            }
            if (!close(mine.value, truth.value) ||
                !close(mine.grad, truth.grad)) {
              failures.add(to_string(layout) + " on " + std::to_string(ranks));
            }
          }
        });
      }
      EXPECT_EQ(failures.text(), "") << "p = " << p;
      const auto kept = truth.value.ne(0);
      const auto scale = p == 1 ? 0 : 1 / (1 - p);
      EXPECT_TRUE(close(truth.value, x * kept * scale));
      EXPECT_TRUE(close(truth.grad, 2 * x * kept * scale * scale));
      EXPECT_EQ(kept.all().item<bool>(), p == 0);
      EXPECT_EQ(kept.any().item<bool>(), p < 1);
    }
  }
}

TEST(DropoutTest, KeepsAPartialSumAndCommunicatesNothing) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x =
        in_layout(uniform({4, 4}, 1), mesh, {Partial(ReduceOp::kSum)});
    Collectives collectives;
    const auto y = at::dropout(x, 0.5, true);
    EXPECT_EQ(collectives.take(), "");
    EXPECT_TRUE(DTensor(y).placements()[0] == Partial(ReduceOp::kSum));
  });
}

TEST(DropoutTest, DifferentiatesComplexNumbers) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto numbers = at::complex(uniform({40}, 1) + 1, uniform({40}, 2));
    for (const Placement& placement : std::vector<Placement>{
             Replicate(), Shard(0), Partial(ReduceOp::kSum)}) {
      auto x = in_layout(numbers, mesh, {placement}).detach();
      x.requires_grad_();
      const auto y = at::dropout(x, 0.5, true);
      const auto factors = at::real(full(y.detach()) / numbers);
      const auto kept = factors.gt(1);
      EXPECT_TRUE(at::allclose(factors, 2 * kept.to(at::kDouble)));
      EXPECT_TRUE(kept.any().item<bool>() && !kept.all().item<bool>());
      y.backward(distribute_tensor(
          at::ones_like(numbers), mesh, {Replicate()}, std::nullopt));
      EXPECT_TRUE(at::allclose(at::real(full(x.grad())), factors));
    }
  });
}

TEST(DropoutTest, DoesNothingOutsideTraining) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto x = in_layout(uniform({4}, 1), mesh, {Replicate()});
  EXPECT_TRUE(at::dropout(x, 0.5, false).is_same(x));
  c10::InferenceMode inference;
  const auto y = in_layout(uniform({4}, 1), mesh, {Replicate()});
  EXPECT_TRUE(at::dropout(y, 0.5, false).is_same(y));
  EXPECT_TRUE(full(at::dropout(y, 1, true)).eq(0).all().item<bool>());
}

TEST(DropoutTest, KeepsTheRightShare) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  manual_seed(2);
  const auto y = at::dropout(
      distribute_tensor(at::ones({1000000}), mesh, {Replicate()}), 0.3, true);
  EXPECT_NEAR(full(y).mean().item<double>(), 1, 5e-3);
  EXPECT_NEAR(full(y.ne(0)).to(at::kDouble).mean().item<double>(), 0.7, 3e-3);
}

} // namespace TEST_SOURCE
} // namespace dtensor
