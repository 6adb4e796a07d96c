// SPDX-License-Identifier: BSD-3-Clause
// Draws from tensors of parameters follow their distributions, and random
// operators reject the dtypes that the plain operators reject.
#include <dtensor/random/random.h>

#include "oracle.h"

#include <tests/error_of.h>

#include <set>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;

using namespace dtensor::testing;

using Draw = std::function<at::Tensor(const Tensors&)>;

TEST(DistributionsTest, HaveTheRightMoments) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto expect = [&](const std::string& name,
                          const std::function<at::Tensor(double)>& draw,
                          double parameter,
                          double mean,
                          double variance) {
    const auto x = full(draw(parameter)).to(at::kDouble);
    const auto n = static_cast<double>(x.numel());
    SCOPED_TRACE(name + " " + std::to_string(parameter));
    EXPECT_NEAR(x.mean().item<double>(), mean, 5 * std::sqrt(variance / n));
    EXPECT_NEAR(x.var().item<double>(), variance, 0.03 * variance);
  };
  const auto of = [&](double value) {
    return in_layout(at::full({300, 500}, value), mesh, {Replicate()});
  };
  manual_seed(3);
  expect(
      "normal", [&](double m) { return at::normal(of(m), of(3)); }, 1, 1, 9);
  for (const double rate : {0.2, 3.0, 9.9, 10.1, 50.0, 1e4}) {
    expect(
        "poisson",
        [&](double r) { return at::poisson(of(r)); },
        rate,
        rate,
        rate);
  }
  for (const double shape : {0.3, 1.0, 2.5, 40.0}) {
    expect(
        "gamma",
        [&](double s) { return at::_standard_gamma(of(s)); },
        shape,
        shape,
        shape);
  }
  for (const double p : {0.02, 0.3, 0.5, 0.77, 0.99}) {
    for (const double n : {1.0, 12.0, 1000.0}) {
      expect(
          "binomial of " + std::to_string(n),
          [&](double q) { return at::binomial(of(n), of(q)); },
          p,
          n * p,
          n * p * (1 - p));
    }
  }
  const auto alpha = in_layout(
      at::tensor({0.5, 1.0, 2.5}).expand({200000, 3}), mesh, {Replicate()});
  const auto x = full(at::_sample_dirichlet(alpha)).to(at::kDouble);
  EXPECT_TRUE(at::allclose(x.sum(-1), at::ones({200000}, at::kDouble)));
  const auto mean = at::tensor({0.5, 1.0, 2.5}, at::kDouble) / 4;
  EXPECT_TRUE(at::allclose(x.mean(0), mean, 1e-2, 0));
  EXPECT_TRUE(at::allclose(x.var(0), mean * (1 - mean) / 5, 2e-2, 0));
}

// Counts follow the probabilities of their distributions, not only the moments.
TEST(DistributionsTest, CountsHaveTheRightFrequencies) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto of = [&](double value) {
    return in_layout(
        at::full({400000}, value, at::kDouble), mesh, {Replicate()});
  };
  const auto expect = [](const at::Tensor& counts, const Draw& log_p) {
    const auto observed = at::bincount(full(counts).to(at::kLong), {}, 60);
    const auto k = at::arange(observed.numel(), at::kDouble);
    const auto expected = log_p({k}).exp() * 400000;
    const auto likely = expected.gt(20);
    const auto chi =
        (observed - expected).square().div(expected).masked_select(likely);
    const auto degrees = static_cast<double>(chi.numel());
    EXPECT_LT(chi.sum().item<double>(), degrees + 5 * std::sqrt(2 * degrees));
  };
  manual_seed(9);
  for (const double rate : {2.0, 15.0}) {
    expect(at::poisson(of(rate)), [&](const Tensors& k) {
      return k[0] * std::log(rate) - rate - at::lgamma(k[0] + 1);
    });
  }
  for (const double p : {0.1, 0.6}) {
    expect(at::binomial(of(50), of(p)), [&](const Tensors& t) {
      const auto k = t[0].clamp_max(50);
      return std::lgamma(51.0) - at::lgamma(k + 1) - at::lgamma(51 - k) +
          k * std::log(p) + (50 - k) * std::log1p(-p);
    });
  }
}

TEST(DistributionsTest, SpecialParameters) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto inf = std::numeric_limits<double>::infinity();
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    const auto of = [&](const std::vector<double>& values) {
      return in_layout(at::tensor(values), mesh, {Shard(0)});
    };
    const auto equal = [&](const at::Tensor& x,
                           const std::vector<double>& values) {
      return at::allclose(
          full(x), at::tensor(values), 0, 0, /*equal_nan=*/true);
    };
    EXPECT_TRUE(equal(at::poisson(of({0, inf, 0})), {0, inf, 0}));
    EXPECT_TRUE(equal(
        at::binomial(of({5, 5, 0, -1, nan, 5}), of({0, 1, 0.5, 0.5, 0.5, nan})),
        {0, 5, 0, 0, nan, nan}));
    EXPECT_TRUE(
        full(at::_standard_gamma(of({0, 0, 1e-9}))).gt(0).all().item<bool>());
    EXPECT_TRUE(equal(at::normal(of({1, 2, 3}), 0.0), {1, 2, 3}));
    EXPECT_EQ(at::poisson(of({})).sizes(), at::IntArrayRef({0}));
    EXPECT_EQ(at::normal(of({}), of({1})).sizes(), at::IntArrayRef({0}));
  });
}

// Fills reject the dtypes that the plain operators reject.
TEST(DistributionsTest, RejectTheDtypesOfPlainOperators) {
  using Call = std::function<void(at::Tensor)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"exponential_", [](at::Tensor t) { t.exponential_(); }},
      {"uniform_", [](at::Tensor t) { t.uniform_(); }},
      {"normal_", [](at::Tensor t) { t.normal_(); }},
      {"log_normal_", [](at::Tensor t) { t.log_normal_(); }},
      {"cauchy_", [](at::Tensor t) { t.cauchy_(); }},
      {"geometric_", [](at::Tensor t) { t.geometric_(0.5); }},
      {"bernoulli_", [](at::Tensor t) { t.bernoulli_(0.5); }},
      {"bernoulli", [](const at::Tensor& t) { at::bernoulli(t); }},
      {"bernoulli.p", [](const at::Tensor& t) { at::bernoulli(t, 0.5); }},
      {"random_", [](at::Tensor t) { t.random_(); }},
      {"random_.to", [](at::Tensor t) { t.random_(2); }},
      {"randint_like", [](const at::Tensor& t) { at::randint_like(t, 2); }},
      {"multinomial", [](const at::Tensor& t) { at::multinomial(t, 1); }},
      {"poisson", [](const at::Tensor& t) { at::poisson(t); }},
      {"normal", [](const at::Tensor& t) { at::normal(t, 1.0); }},
      {"gamma", [](const at::Tensor& t) { at::_standard_gamma(t); }},
      {"binomial", [](const at::Tensor& t) { at::binomial(t, t); }},
      {"rrelu", [](const at::Tensor& t) { at::rrelu(t, 0.1, 0.3, true); }},
  };
  // LibTorch lacks some kernels for half precision, and DTensors draw no
  // complex numbers.
  const std::set<std::string> complex = {
      "uniform_ c64", "normal_ c64", "normal c64"};
  const auto mesh = init_device_mesh(at::kCPU, {1});
  for (const auto& each : calls) {
    const auto& call = each.second;
    for (const auto dtype :
         {at::kFloat,
          at::kDouble,
          at::kLong,
          at::kByte,
          at::kBool,
          at::kComplexFloat}) {
      const auto plain = at::ones({2}, dtype);
      const auto named = each.first + " " + short_name(dtype);
      const auto accepted = std::string("nothing was thrown");
      const bool refused = error_of([&] { call(plain.clone()); }) != accepted;
      EXPECT_EQ(
          error_of([&] {
            call(distribute_tensor(plain, mesh, {Replicate()}));
          }) != accepted,
          refused || complex.count(named) != 0)
          << named;
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
