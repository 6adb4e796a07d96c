// SPDX-License-Identifier: BSD-3-Clause
// Layouts and dtypes of pointwise results, and that every rule has an operator.
#include <dtensor/ops/registry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

namespace dtensor::testing {
namespace {

TEST(Pointwise, ComplexNumbersForwardAndBackward) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto values = at::complex(uniform({5, 3}, 1), uniform({5, 3}, 2));
    const auto others = at::complex(uniform({5, 3}, 3), uniform({5, 3}, 4));
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      auto plain = values.clone().requires_grad_();
      auto placed = place(values, mesh, p).detach().requires_grad_();
      const auto expected = (plain * others).conj() * plain;
      const auto result =
          (placed * place(others, mesh, Shard(0))).conj() * placed;
      EXPECT_TRUE(at::allclose(full(result.detach()), expected.detach()));
      const auto wanted =
          torch::autograd::grad({expected}, {plain}, {others})[0];
      const auto got = torch::autograd::grad(
          {result}, {placed}, {place(others, mesh, Shard(0))})[0];
      EXPECT_TRUE(at::allclose(full(got), wanted));
    }
  });
}

TEST(Pointwise, PartialOperandsStayPartialWhereTheOperatorIsLinear) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto p = place(uniform({5, 3}, 1), mesh, Partial());
    const auto r = place(uniform({5, 3}, 2), mesh, Replicate());
    const auto most = place(uniform({5, 3}, 1), mesh, Partial(ReduceOp::kMax));
    const auto layout = [](const at::Tensor& t) {
      return DTensor(t).placements()[0];
    };
    EXPECT_EQ(layout(p + p), Partial());
    EXPECT_EQ(layout(p - r), Partial());
    EXPECT_EQ(layout(p * r), Partial());
    EXPECT_EQ(layout(p / r), Partial());
    EXPECT_EQ(layout(p * 2), Partial());
    EXPECT_EQ(layout(-p), Partial());
    EXPECT_EQ(layout(at::where(r > 0.5, p, r)), Partial());
    EXPECT_EQ(layout(p.clone()), Partial());
    EXPECT_EQ(layout(p.to(at::kComplexDouble)), Partial());
    EXPECT_EQ(layout(most.relu()), Partial(ReduceOp::kMax));
    EXPECT_EQ(layout(at::maximum(most, r)), Partial(ReduceOp::kMax));
    EXPECT_EQ(layout(p * p), Partial()); // one of them is reduced
    // Not linear: reduced first.
    EXPECT_FALSE(layout(p + 1).is_partial());
    EXPECT_FALSE(layout(p.relu()).is_partial());
    EXPECT_FALSE(layout(r / p).is_partial());
    EXPECT_FALSE(layout(p.to(at::kFloat)).is_partial());
    EXPECT_FALSE(layout(most.to(at::kComplexDouble)).is_partial());
    EXPECT_FALSE(layout(p.to(at::kLong)).is_partial());
    EXPECT_FALSE(layout(most.log()).is_partial());
    EXPECT_FALSE(layout(-most).is_partial());
    // Written by one rank, or brought to the layout of what is written.
    EXPECT_TRUE(close(full(p.fill_(3)), at::full({5, 3}, 3.0, at::kDouble)));
    EXPECT_TRUE(close(
        full(p.masked_fill_(r > 0.5, 7)),
        at::full({5, 3}, 3.0, at::kDouble).masked_fill(full(r) > 0.5, 7)));
    EXPECT_TRUE(close(full(p.zero_()), at::zeros({5, 3}, at::kDouble)));
    EXPECT_TRUE(close(full(p.copy_(r)), full(r)));
    EXPECT_EQ(layout(p), Partial());
  });
}

TEST(Pointwise, ANumberBesideAScalarTensorDoesNotDecideTheDtype) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(at::ones({}), mesh, Replicate());
    for (const auto& t : {1.0 / x, 1 - x, x + 1e-6, x * 2.0}) {
      EXPECT_EQ(t.scalar_type(), at::kFloat);
      EXPECT_EQ(DTensor(t).to_local().scalar_type(), at::kFloat);
    }
  });
}

TEST(Registry, EveryRuleIsForAnOperatorThatExists) {
  EXPECT_THAT(RuleRegistry::global().unknown_names(), ::testing::IsEmpty());
}

} // namespace
} // namespace dtensor::testing
