// SPDX-License-Identifier: BSD-3-Clause
// Operators that run with the autograd of the local operator.
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

namespace dtensor::testing {
namespace {

TEST(Region, AnInPlaceVariantWritesItsOperandAndKeepsItsGradient) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [](const at::Tensor& x,
                        const at::Tensor& a,
                        const at::Tensor& b,
                        const at::Tensor& seed) {
      auto y = x * 2;
      const auto same = y.addmm_(a, b);
      EXPECT_TRUE(same.is_same(y));
      auto grads = torch::autograd::grad({y}, {x, a}, {seed});
      grads.push_back(y.detach());
      return grads;
    };
    const auto x = uniform({5, 3}, 1);
    const auto a = uniform({5, 4}, 2);
    const auto b = uniform({4, 3}, 3);
    const auto seed = uniform({5, 3}, 4);
    const auto leaf = [&](const at::Tensor& t, const Placement& p) {
      return place(t, mesh, p).detach().requires_grad_();
    };
    const auto expected =
        run(x.clone().requires_grad_(), a.clone().requires_grad_(), b, seed);
    const auto results =
        run(leaf(x, Shard(0)),
            leaf(a, Shard(0)),
            place(b, mesh, Replicate()),
            place(seed, mesh, Shard(0)));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(close(full(results[i]), expected[i])) << i;
    }
  });
}

} // namespace
} // namespace dtensor::testing
