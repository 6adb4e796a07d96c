// SPDX-License-Identifier: BSD-3-Clause
// Layouts and dtypes of pointwise results, and a check that every rule has an
// operator.
#include <dtensor/ops/registry.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>
#include <tests/torch_version.h>

#include <limits>

namespace dtensor::testing {
namespace TEST_SOURCE {

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
    // Two reduce_scatters send less than an all_reduce of one operand and the
    // reduction of the result.
    EXPECT_EQ(layout(p * p), Shard(0));
    // Nonlinear operators reduce their operand first.
    EXPECT_FALSE(layout(p + 1).is_partial());
    EXPECT_FALSE(layout(p.relu()).is_partial());
    EXPECT_FALSE(layout(r / p).is_partial());
    EXPECT_FALSE(layout(p.to(at::kFloat)).is_partial());
    EXPECT_FALSE(layout(most.to(at::kComplexDouble)).is_partial());
    EXPECT_FALSE(layout(p.to(at::kLong)).is_partial());
    EXPECT_FALSE(layout(most.log()).is_partial());
    // One rank writes the number, or the tensor is redistributed to the layout
    // of the written values.
    EXPECT_TRUE(close(full(p.fill_(3)), at::full({5, 3}, 3.0, at::kDouble)));
    EXPECT_TRUE(close(
        full(p.masked_fill_(r > 0.5, 7)),
        at::full({5, 3}, 3.0, at::kDouble).masked_fill(full(r) > 0.5, 7)));
    EXPECT_TRUE(close(full(p.zero_()), at::zeros({5, 3}, at::kDouble)));
    EXPECT_TRUE(close(full(p.copy_(r)), full(r)));
    EXPECT_EQ(layout(p), Partial());
  });
}

// Greatest and least terms stay partial under operators that keep the order,
// because a number or tensor has the same effect on all terms.
TEST(Pointwise, GreatestAndLeastTermsStayPartialWhereOrderIsKept) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto r = place(uniform({5, 3}, 2), mesh, Replicate());
    const auto plain = uniform({5, 3}, 1);
    for (const auto op : {ReduceOp::kMax, ReduceOp::kMin}) {
      const auto other = op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax;
      const auto x = place(plain, mesh, Partial(op));
      const auto expect = [&](const at::Tensor& t,
                              const at::Tensor& truth,
                              const Placement& placement) {
        EXPECT_EQ(DTensor(t).placements()[0], placement);
        EXPECT_TRUE(close(full(t), truth));
      };
      const auto whole = full(r);
      expect(-x, -plain, Partial(other));
      expect(x + 1, plain + 1, Partial(op));
      expect(x - 1, plain - 1, Partial(op));
      expect(1 - x, 1 - plain, Replicate());
      expect(x + r, plain + whole, Partial(op));
      expect(x - r, plain - whole, Partial(op));
      expect(at::add(x, r, -2), at::add(plain, whole, -2), Partial(op));
      expect(at::maximum(x, r), at::maximum(plain, whole), Partial(op));
      expect(at::minimum(r, x), at::minimum(whole, plain), Partial(op));
      // A factor may reverse the order by its sign.
      expect(at::add(r, x, -2), at::add(whole, plain, -2), Replicate());
      expect(at::sub(r, x), whole - plain, Replicate());
    }
  });
}

TEST(Pointwise, FillsKeepNothingOfTheTerms) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = uniform({5, 3}, 1);
    const auto most = place(plain, mesh, Partial(ReduceOp::kMax));
    EXPECT_TRUE(close(full(1 - most), 1 - plain));
    const auto mean = place(plain, mesh, Partial(ReduceOp::kAvg));
    const auto zeros = at::zeros_like(mean, at::kLong);
    EXPECT_EQ(DTensor(zeros).placements()[0], Replicate());
    EXPECT_TRUE(at::equal(full(zeros), at::zeros({5, 3}, at::kLong)));
  });
}

// If two operands have different reductions, one operand is reduced, because a
// layout has only one reduction.
TEST(Pointwise, OperandsOfUnlikeReductions) {
  const auto a = uniform({5, 3}, 1);
  const auto b = uniform({5, 3}, 2);
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const at::Tensor condition =
        distribute_tensor(a > 0.5, mesh, {Replicate(), Replicate()});
    const ReduceOp ops[] = {
        ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};
    const auto terms = [&](const at::Tensor& full, ReduceOp op) {
      return op == ReduceOp::kSum ? full / 2 : full;
    };
    for (const auto first : ops) {
      for (const auto second : ops) {
        const at::Tensor x = DTensor::from_local(
            terms(a, first), mesh, {Partial(first), Replicate()});
        const at::Tensor y = DTensor::from_local(
            terms(b, second), mesh, {Replicate(), Partial(second)});
        EXPECT_TRUE(
            close(full(at::where(condition, x, y)), at::where(a > 0.5, a, b)));
        EXPECT_TRUE(
            close(full(at::where(condition, y, x)), at::where(a > 0.5, b, a)));
        EXPECT_TRUE(close(full(x + y), a + b));
        EXPECT_TRUE(close(full(x * y), a * b));
        EXPECT_TRUE(close(full(at::maximum(x, y)), at::maximum(a, b)));
      }
    }
  });
}

// Partial sums are exact for finite results only, because terms may be infinite
// with both signs although the sum is not.
TEST(Pointwise, SumsAreExactForFiniteResultsOnly) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor p = DTensor::from_local(
        at::full({2}, mesh.get_local_rank(0) == 0 ? 3.0 : -1.0),
        mesh,
        {Partial()});
    const auto factors = [&](double value) {
      return place(at::full({2}, value), mesh, Replicate());
    };
    const auto inf = std::numeric_limits<double>::infinity();
    for (const auto& t :
         {p / 0,
          p * inf,
          at::addcdiv(p, p, factors(0)),
          at::addcmul(p, p, factors(inf))}) {
      EXPECT_TRUE(full(t).isnan().all().item<bool>()); // plain: inf
    }
    EXPECT_TRUE(at::equal(full(p / 2), at::ones({2})));
    const at::Tensor whole = DTensor(p).redistribute({Replicate()});
    EXPECT_TRUE(full(whole / 0).isinf().all().item<bool>());
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

// Results of expanded tensors have the strides of plain results. An expanded
// dimension has stride 0, which implies no memory order.
TEST(Pointwise, ResultsOfExpandedTensorsAreViewedAsPlainOnesAre) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    const auto values = uniform({2, 4, 6}, 1) - 0.5;
    const auto placed = distribute_tensor(values, mesh, {Shard(2), Shard(0)});
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {2, 2, 4, 6}, {3, 2, 4, 6}, {1, 2, 4, 6}}) {
      // In C++, LibTorch has a meta kernel for sin, but not for relu.
      const auto plain = values.expand(sizes).relu();
      const auto result = placed.expand(sizes).relu();
      EXPECT_EQ(result.strides(), plain.strides());
      EXPECT_EQ(placed.expand(sizes).sin().strides(), plain.strides());
      EXPECT_TRUE(
          at::equal(full(result.view({-1, 4, 6})), plain.view({-1, 4, 6})));
    }
  });
}

TEST(Registry, EveryRuleIsForAnOperatorThatExists) {
  std::vector<std::string> missing;
  if (!kHasUpsampleLanczos) {
    missing.emplace_back("aten::_upsample_lanczos2d_aa");
  }
  if (!kHasCholesky) {
    missing.emplace_back("aten::cholesky");
  }
  EXPECT_EQ(RuleRegistry::global().unknown_names(), missing);
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
