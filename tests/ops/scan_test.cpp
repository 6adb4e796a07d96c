// SPDX-License-Identifier: BSD-3-Clause
// Cumulative operators along any dimension, sharded or not.
#include "oracle.h"

#include <functional>
#include <limits>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

using Scan = std::function<Tensors(const at::Tensor&, int64_t)>;
struct Named {
  std::string name;
  Scan run;
};

Tensors both(std::tuple<at::Tensor, at::Tensor> results) {
  return {std::get<0>(results), std::get<1>(results)};
}

std::vector<Named> scans() {
  using T = const at::Tensor&;
  return {
      {"cumsum", [](T x, int64_t d) { return Tensors{x.cumsum(d)}; }},
      {"cumprod", [](T x, int64_t d) { return Tensors{x.cumprod(d)}; }},
      {"cummax", [](T x, int64_t d) { return both(x.cummax(d)); }},
      {"cummin", [](T x, int64_t d) { return both(x.cummin(d)); }},
      {"logcumsumexp",
       [](T x, int64_t d) { return Tensors{x.logcumsumexp(d)}; }}};
}

void check(
    const std::string& name,
    const Tensors& operands,
    const TensorFunction& fn,
    const std::vector<Placements>& placements = {}) {
  SCOPED_TRACE(name);
  SameAsPlainOptions options;
  options.placements = placements;
  options.meshes = {{1}, {3}, {2, 2}, {3, 2}};
  options.layouts = 12;
  EXPECT_NO_THROW(expect_same_as_plain(fn, operands, options));
}

TEST(Scan, IsThatOfTheFullTensor) {
  const std::vector<std::vector<int64_t>> all_sizes = {
      {5, 3}, {1, 4}, {7, 2, 3}, {4}, {0, 3}, {}};
  for (const auto& scan : scans()) {
    for (const auto& sizes : all_sizes) {
      const auto ndim = std::max<int64_t>(1, std::ssize(sizes));
      for (int64_t d = 0; d < ndim; ++d) {
        check(
            scan.name + " " + std::to_string(d),
            {variable(sizes, 3)},
            [&](const Tensors& t) { return scan.run(t[0], d - ndim); });
      }
    }
  }
}

// The gradient of a product depends on the number of zeros.
TEST(Scan, OfProductsWithZeros) {
  for (const int64_t zeros : {1, 2, 4}) {
    auto x = variable({7, 3}, 5).detach();
    x.narrow(0, 2, zeros).select(1, 1).zero_();
    check("cumprod", {x.requires_grad_()}, [](const Tensors& t) {
      return Tensors{t[0].cumprod(0)};
    });
  }
}

TEST(Scan, OfNonContiguousTensors) {
  for (const auto& scan : scans()) {
    check(scan.name, {variable({3, 7}, 6)}, [&](const Tensors& t) {
      return scan.run(t[0].t(), 0);
    });
  }
}

// --- exact results -----------------------------------------------------------

// Returns few distinct values, so that many are equal.
at::Tensor drawn(at::IntArrayRef sizes, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(8);
  const auto t = at::randint(-2, 3, sizes, generator, at::kLong);
  return (at::isFloatingType(dtype) ? t : t.abs()).to(dtype);
}

// Returns true if integers are equal, or other numbers are equal except for the
// order of additions.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::isFloatingType(b.scalar_type())
      ? at::allclose(a, b, 0, 1e-12, /*equal_nan=*/true)
      : at::equal(a, b);
}

void expect_equal(
    const Named& scan,
    const at::Tensor& whole,
    const std::vector<int64_t>& mesh_shape,
    const std::vector<Placements>& layouts) {
  run_ranks(c10::multiply_integers(mesh_shape), [&] {
    const auto mesh = init_device_mesh(at::kCPU, mesh_shape);
    for (const auto& layout : layouts) {
      const auto x = distribute_tensor(whole, mesh, layout, std::nullopt);
      for (int64_t d = 0; d < whole.dim(); ++d) {
        const auto wanted = scan.run(whole, d);
        const auto got = scan.run(x, d);
        for (size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_EQ(got[i].scalar_type(), wanted[i].scalar_type());
          EXPECT_TRUE(same(full_tensor(got[i]), wanted[i]))
              << scan.name << " along " << d << " of "
              << to_string(*DTensor(x).spec()) << "\n"
              << full_tensor(got[i]) << wanted[i];
        }
      }
    }
  });
}

const std::vector<Placements> kLayouts = {
    {Shard(0)},
    {Shard(1)},
    {Shard(0, 3)},
    {StridedShard(0, 2)},
    {Replicate()}};

std::vector<Placements> pairs() {
  std::vector<Placements> all;
  for (const auto& a : kLayouts) {
    for (const auto& b : kLayouts) {
      all.push_back({a[0], b[0]});
    }
  }
  return all;
}

TEST(Scan, OfIntegersAndBooleans) {
  for (const auto& scan : scans()) {
    for (const auto dtype : {at::kLong, at::kInt, at::kByte, at::kBool}) {
      if (scan.name == "logcumsumexp") {
        continue; // has no kernel for integers
      }
      const auto x = drawn({7, 3}, dtype);
      expect_equal(scan, x, {3}, kLayouts);
      expect_equal(scan, x, {2, 2}, pairs());
    }
  }
}

// Among equal extremes, the last one counts. After a NaN, all results are NaN.
TEST(Scan, OfInfinitiesAndNaN) {
  const auto infinity = std::numeric_limits<double>::infinity();
  for (const auto& scan : scans()) {
    for (const double special : {std::nan(""), infinity, -infinity}) {
      auto x = drawn({7, 3}, at::kDouble);
      x.index_put_(
          {torch::tensor({3, 5, 0, 4}), torch::tensor({0, 0, 1, 2})},
          at::scalar_tensor(special, at::kDouble));
      expect_equal(scan, x, {3}, kLayouts);
      expect_equal(scan, x, {2, 2}, pairs());
    }
  }
}

// If no finite number precedes, the gradient is that of the plain operator.
TEST(Scan, GradientsAfterLogarithmsOfZero) {
  auto x = variable({6, 2}, 4).detach();
  x.narrow(0, 0, 3).select(1, 0).fill_(
      -std::numeric_limits<double>::infinity());
  check(
      "logcumsumexp",
      {x.requires_grad_()},
      [](const Tensors& t) {
        return Tensors{t[0].logcumsumexp(0).narrow(0, 3, 3)};
      },
      {{Replicate(), Shard(0), Shard(1)}}); // terms of -inf would be NaN
}

// Logarithms of zero at the start of a shard, behind numbers: all gradients are
// finite, also where a shard has nothing else.
TEST(Scan, GradientsOfLogarithmsOfZeroBehindNumbers) {
  for (const int64_t count : {1, 2, 4}) {
    auto x = variable({6, 2}, 4).detach();
    x.narrow(0, 2, count).fill_(-std::numeric_limits<double>::infinity());
    check(
        "logcumsumexp",
        {x.requires_grad_()},
        [](const Tensors& t) { return Tensors{t[0].logcumsumexp(0)}; },
        {{Replicate(), Shard(0), Shard(1)}}); // terms of -inf would be NaN
  }
}

// The gradient of a gradient that has vanished is that of the plain operator.
TEST(Scan, SecondDerivativesOfFarLogarithms) {
  const auto values =
      at::tensor({1e4, 0.0, 1.0, 2e4, 3.0, 2e4 + 1}, at::kDouble);
  const auto second = [](const at::Tensor& x, const at::Tensor& cotangent) {
    const auto y = at::logcumsumexp(x, 0);
    const auto gradient = torch::autograd::grad(
        {y}, {x}, {cotangent}, std::nullopt, /*create_graph=*/true)[0];
    return torch::autograd::grad({gradient.square().sum()}, {x, cotangent});
  };
  const auto cotangent = uniform({6}, 9).requires_grad_(true);
  const auto expected = second(values.clone().requires_grad_(true), cotangent);
  for (const int64_t ranks : {2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      const auto shards = [&](const at::Tensor& full) {
        return distribute_tensor(full.detach(), mesh, {Shard(0)})
            .requires_grad_(true);
      };
      const auto got = second(shards(values), shards(cotangent));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(full_tensor(got[i]), expected[i])) << i;
      }
    });
  }
}

// Totals of shards that are added to later shards have another logarithm: the
// imaginary parts would differ by multiples of 2 pi.
TEST(Scan, LogarithmsOfComplexSums) {
  auto generator = at::detail::createCPUGenerator(5);
  const auto values = at::randn({9, 64}, generator, at::kComplexDouble) * 6;
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& layout : {Shard(0), Shard(1)}) {
      const auto x = distribute_tensor(values, mesh, {layout});
      const auto sums = at::logcumsumexp(x, 0);
      EXPECT_TRUE(at::allclose(full_tensor(sums), at::logcumsumexp(values, 0)));
    }
  });
}

TEST(Scan, InTheDtypeOfTheCall) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto whole = drawn({7, 3}, at::kByte);
    const auto x = distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt);
    for (const auto dtype : {at::kInt, at::kFloat, at::kHalf, at::kDouble}) {
      const auto sum = x.cumsum(0, dtype);
      EXPECT_EQ(sum.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(full_tensor(sum), whole.cumsum(0, dtype)));
      const auto product = x.cumprod(0, dtype);
      EXPECT_EQ(product.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(full_tensor(product), whole.cumprod(0, dtype)));
    }
  });
}

// --- communication -----------------------------------------------------------

TEST(Scan, ExchangesTotalsAlone) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x =
        in_layout(uniform({100, 3}, 1), mesh, {Shard(0)}).requires_grad_();
    const auto seed = in_layout(uniform({100, 3}, 2), mesh, {Shard(0)});
    Collectives collectives;
    const auto y = x.cumsum(0);
    EXPECT_EQ(DTensor(y).placements()[0], Placement(Shard(0)));
    EXPECT_EQ(collectives.take(), "all_gather 24");
    const auto grad = torch::autograd::grad({y}, {x}, {seed})[0];
    EXPECT_EQ(DTensor(grad).placements()[0], Placement(Shard(0)));
    EXPECT_EQ(collectives.take(), "reduce_scatter 48");
    const auto [values, indices] = x.detach().cummax(0);
    EXPECT_EQ(DTensor(indices).placements()[0], Placement(Shard(0)));
    EXPECT_EQ(collectives.take(), "all_gather 24, all_gather 24");
  });
}

TEST(Scan, PartialSumsAreScannedInPlace) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto whole = uniform({5, 3}, 1);
    const auto x = in_layout(whole, mesh, {Partial(ReduceOp::kSum), Shard(0)});
    const auto y = x.cumsum(0);
    EXPECT_EQ(DTensor(y).placements()[0], Placement(Partial(ReduceOp::kSum)));
    EXPECT_EQ(DTensor(y).placements()[1], Placement(Shard(0)));
    EXPECT_TRUE(close(full_tensor(y), whole.cumsum(0)));
  });
}

// --- variants ----------------------------------------------------------------

TEST(Scan, InPlaceAndOut) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto whole = uniform({5, 4}, 1);
    const auto fresh = [&] {
      return distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt).clone();
    };
    auto x = fresh();
    Collectives collectives;
    EXPECT_TRUE(x.cumsum_(0).is_same(x));
    EXPECT_EQ(collectives.take(), "all_gather 32");
    EXPECT_TRUE(close(full_tensor(x), whole.cumsum(0)));
    x = fresh();
    x.cumprod_(0);
    EXPECT_TRUE(close(full_tensor(x), whole.cumprod(0)));
    auto out = fresh();
    at::cumsum_out(out, fresh(), 0);
    EXPECT_TRUE(close(full_tensor(out), whole.cumsum(0)));
    at::logcumsumexp_out(out, fresh(), 0);
    EXPECT_TRUE(close(full_tensor(out), whole.logcumsumexp(0)));
    auto indices = at::empty_like(out, at::kLong);
    at::cummax_out(out, indices, fresh(), 0);
    EXPECT_TRUE(at::equal(full_tensor(indices), std::get<1>(whole.cummax(0))));
  });
}

TEST(Scan, InPlaceWithGradients) {
  check("cumsum_", {variable({5, 3}, 2)}, [](const Tensors& t) {
    auto x = t[0] * 2;
    x.cumsum_(0);
    return Tensors{x};
  });
  // A product of a partial sum is refused.
  check(
      "cumprod_",
      {variable({5, 3}, 2)},
      [](const Tensors& t) {
        auto x = t[0] * 2;
        x.cumprod_(0);
        return Tensors{x};
      },
      {{Replicate(), Shard(0), Shard(1)}});
}

// Second derivatives communicate on all ranks, including ranks with empty
// shards.
TEST(Scan, SecondDerivatives) {
  const auto twice = [](const Scan& scan, const at::Tensor& x) {
    const auto y = scan(x, 0)[0].pow(3).sum();
    const auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
  };
  for (const auto& scan : scans()) {
    for (const int64_t rows : {5, 2}) {
      const auto whole = uniform({rows, 2}, 4);
      const auto wanted = twice(scan.run, whole.clone().requires_grad_());
      run_ranks(3, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {3});
        const auto x = in_layout(whole, mesh, {Shard(0)}).requires_grad_();
        const auto got = full_tensor(twice(scan.run, x));
        EXPECT_TRUE(close(got, wanted)) << scan.name << got << wanted;
      });
    }
  }
}

TEST(Scan, SumsAllowASecondBackward) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const int64_t rows : {7, 2}) { // one rank has none
      const auto plain = variable({rows, 2}, 1).detach();
      auto x = distribute_tensor(plain, mesh, {Shard(0)});
      x.set_requires_grad(true);
      const auto sum = full_tensor(x.cumsum(0)).sum();
      sum.backward();
      sum.backward();
      const auto counts =
          2 * at::arange(rows, 0, -1, plain.options()).unsqueeze(1);
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), counts.expand({rows, 2})));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
