// SPDX-License-Identifier: BSD-3-Clause
// Operators that draw from distributions with tensors as parameters: the same
// numbers in every layout, from the correct distribution.
#include <dtensor/random/random.h>

#include "oracle.h"

#include <tests/error_of.h>
#include <tests/ops/against_plain.h>

#include <ATen/CPUGeneratorImpl.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;

using namespace dtensor::testing;

using Draw = std::function<at::Tensor(const Tensors&)>;

struct Drawn {
  std::string name;
  Tensors parameters;
  Draw draw;
};

// Operators with parameters of shape (5, 4) and shapes that broadcast to it.
std::vector<Drawn> operators() {
  const auto x = uniform({5, 4}, 3).to(at::kDouble);
  const auto row = uniform({4}, 4).to(at::kDouble);
  const auto column = uniform({5, 1}, 5).to(at::kDouble);
  const auto normal = [](const Tensors& t) { return at::normal(t[0], t[1]); };
  const auto binomial = [](const Tensors& t) {
    return at::binomial((t[0] * 60).floor(), t[1]);
  };
  return {
      {"normal", {x, x}, normal},
      {"normal of a row", {x, row}, normal},
      {"normal of a column", {column, x}, normal},
      {"normal of both", {row, column}, normal},
      {"normal of a mean",
       {x},
       [](const Tensors& t) { return at::normal(t[0], 2.0); }},
      {"normal of a deviation",
       {x},
       [](const Tensors& t) { return at::normal(2.0, t[0]); }},
      {"normal, out",
       {x, x},
       [](const Tensors& t) {
         auto out = at::empty_like(t[0]).detach();
         const at::NoGradGuard no_grad;
         return at::normal_out(out, t[0].detach(), t[1].detach());
       }},
      {"poisson", {x}, [](const Tensors& t) { return at::poisson(t[0] * 30); }},
      {"binomial", {x, x}, binomial},
      {"binomial of a row", {x, row}, binomial},
      {"gamma",
       {x},
       [](const Tensors& t) { return at::_standard_gamma(t[0] * 3); }},
      {"dirichlet",
       {x},
       [](const Tensors& t) { return at::_sample_dirichlet(t[0]); }},
      {"rrelu",
       {x},
       [](const Tensors& t) { return at::rrelu(t[0] - 0.5, 0.1, 0.9, true); }},
      {"rrelu_",
       {x},
       [](const Tensors& t) {
         auto y = (t[0] - 0.5).abs().neg();
         return at::rrelu_(y, 0.1, 0.9, true);
       }},
  };
}

Tensors in_layouts(
    const Tensors& parameters,
    const DeviceMesh& mesh,
    const std::vector<Placements>& layouts) {
  Tensors result;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Placements layout;
    for (auto p : layouts[i % layouts.size()]) {
      const auto missing = 2 - parameters[i].dim();
      layout.push_back(
          !p.is_sharded()            ? p
              : p.dim() < missing    ? Replicate()
              : p.is_strided_shard() ? p
                                     : Shard(p.dim() - missing));
    }
    result.push_back(in_layout(parameters[i], mesh, layout));
  }
  return result;
}

at::Tensor drawn_alone(const Drawn& d) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  manual_seed(42);
  return full(d.draw(in_layouts(d.parameters, mesh, {{Replicate()}})));
}

TEST(RandomParametersTest, DoNotDependOnTheLayout) {
  const std::vector<std::vector<int64_t>> meshes = {{2}, {3}, {2, 2}, {6}};
  for (const auto& d : operators()) {
    const auto truth = drawn_alone(d);
    Failures failures;
    for (const auto& shape : meshes) {
      run_ranks(shape.size() == 2 ? 4 : shape[0], [&] {
        const auto mesh = init_device_mesh(at::kCPU, shape);
        const auto layouts =
            against_plain::layouts(2, shape.size(), /*partial=*/true);
        for (size_t i = 0; i < layouts.size(); ++i) {
          const auto& other = layouts[(3 * i + 1) % layouts.size()];
          const auto t = in_layouts(d.parameters, mesh, {layouts[i], other});
          manual_seed(42);
          // A sum of terms may round differently.
          if (!at::allclose(full(d.draw(t)), truth, 1e-6, 1e-9)) {
            failures.add(d.name + " " + to_string(*DTensor(t[0]).spec()));
          }
        }
      });
    }
    EXPECT_EQ(failures.text(), "");
  }
}

TEST(RandomParametersTest, KeepTheShardsOfTheParameters) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto x = uniform({5, 4}, 3);
    const auto rows = in_layout(x, mesh, {Shard(0), Replicate()});
    const auto columns = in_layout(x, mesh, {Replicate(), Shard(1)});
    const auto strided = in_layout(x, mesh, {StridedShard(0, 2), Shard(0)});
    const Placements both{Shard(0), Shard(1)};
    EXPECT_EQ(DTensor(at::normal(rows, columns)).placements(), both);
    EXPECT_EQ(
        DTensor(at::poisson(strided)).placements(),
        DTensor(strided).placements());
    const Placements no_rows{Shard(0), Replicate()};
    EXPECT_EQ(
        DTensor(at::_sample_dirichlet(in_layout(x, mesh, both))).placements(),
        no_rows);
  });
}

TEST(RandomParametersTest, ReportRedistributedParameters) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}); // without rank 2
    const auto rows = rand({5, 4}, mesh, {Shard(0)});
    const auto columns = rand({5, 4}, mesh, {Shard(1)});
    const ExplicitRedistributionContext strict;
    EXPECT_EQ(error_of([&] { at::normal(rows, rows); }), "nothing was thrown");
    EXPECT_NE(
        error_of([&] { at::normal(rows, columns); }).find("\"std\""),
        std::string::npos);
  });
}

TEST(RandomParametersTest, NormalsAreThoseOfFills) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto mean = in_layout(at::full({5, 4}, 1.5), mesh, {Shard(0)});
    const auto std = in_layout(at::full({4}, 2.0), mesh, {Shard(0)});
    manual_seed(7);
    const auto drawn = full(at::normal(mean, std));
    manual_seed(7);
    auto filled = in_layout(at::zeros({5, 4}), mesh, {Shard(1)});
    EXPECT_TRUE(at::allclose(drawn, full(filled.normal_(1.5, 2))));
  });
}

TEST(RandomParametersTest, GradientsAreThoseOfThePlainFormulas) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto x = uniform({5, 4}, 3) + 0.5;
    for (const auto& layout :
         {Replicate(), Shard(0), Shard(1), Partial(ReduceOp::kSum)}) {
      const auto leaf = [&] {
        return in_layout(x, mesh, {layout}).detach().requires_grad_();
      };
      const auto gradient = [](const at::Tensor& of, const at::Tensor& with) {
        return full(torch::autograd::grad({of.sum()}, {with})[0]);
      };
      const auto mean = leaf();
      const auto std = leaf();
      EXPECT_TRUE(
          at::equal(gradient(at::normal(mean, std), std), at::zeros_like(x)));
      EXPECT_TRUE(
          at::equal(gradient(at::poisson(mean), mean), at::zeros_like(x)));
      const auto drawn = at::_standard_gamma(mean);
      EXPECT_TRUE(at::allclose(
          gradient(drawn, mean),
          at::_standard_gamma_grad(x, full(drawn.detach()))));
      const auto below = leaf();
      const auto y = at::rrelu(below - 1, 0.1, 0.9, true);
      const auto slope = full(y.detach()) / (x - 1);
      EXPECT_TRUE(at::allclose(gradient(y, below), slope));
    }
  });
}

TEST(RandomParametersTest, DirichletGradient) {
  const auto x = at::softmax(uniform({5, 4}, 1), -1);
  const auto alpha = uniform({5, 4}, 2) + 0.5;
  const auto total = alpha.sum(-1, true).expand({5, 4}).contiguous();
  expect_same_as_plain(
      {"_dirichlet_grad",
       {x, alpha, total},
       {{Replicate(), Shard(0), Shard(1), Partial(ReduceOp::kSum)},
        {Replicate(), Shard(0), Shard(1)},
        {Replicate(), Shard(0), Shard(1)}},
       [](const Tensors& t) { return at::_dirichlet_grad(t[0], t[1], t[2]); }});
}

TEST(RandomParametersTest, RreluInEvaluationHasTheMeanSlope) {
  const auto x = variable({5, 4}, 1);
  const std::vector<Placements> layouts{
      {Replicate(), Shard(0), Shard(1), Partial(ReduceOp::kSum)}};
  expect_same_as_plain({"rrelu", {x}, layouts, [](const Tensors& t) {
                          return at::rrelu(t[0], 0.1, 0.9);
                        }});
  expect_same_as_plain({"rrelu_", {x}, layouts, [](const Tensors& t) {
                          auto y = t[0].exp().sub(1);
                          return at::rrelu_(y, 0.1, 0.9);
                        }});
}

TEST(RandomParametersTest, RreluWritesTheNoise) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = in_layout(uniform({5, 4}, 1) - 0.5, mesh, {Shard(0)});
    for (const auto& layout : {Replicate(), Shard(1)}) {
      auto noise = in_layout(at::zeros({5, 4}), mesh, {layout});
      noise = noise.to(x.scalar_type());
      const auto y = at::rrelu_with_noise(x, noise, 0.1, 0.9, true);
      EXPECT_EQ(DTensor(noise).placements()[0], layout);
      EXPECT_TRUE(at::allclose(full(x) * full(noise), full(y)));
      EXPECT_TRUE(
          full(noise).masked_select(full(x).gt(0)).eq(1).all().item<bool>());
      auto out = at::empty_like(x);
      at::rrelu_with_noise_out(out, x, noise, 0.1, 0.9, true);
      EXPECT_TRUE(at::allclose(full(x) * full(noise), full(out)));
    }
  });
}

TEST(RandomParametersTest, RanksOutsideTheMeshKeepPace) {
  run_ranks(3, [] {
    const auto small = init_device_mesh(at::kCPU, {2});
    const auto whole = init_device_mesh(at::kCPU, {3});
    const auto t = in_layout(uniform({4}, 1), small, {Shard(0)});
    manual_seed(4);
    at::normal(t, t);
    at::poisson(t);
    at::_standard_gamma(t);
    at::rrelu(t, 0.1, 0.3, true);
    const auto after = full_tensor(rand({5}, whole, {Shard(0)}));
    manual_seed(4);
    for (int i = 0; i < 4; ++i) {
      rand({4}, whole);
    }
    EXPECT_TRUE(at::equal(after, full_tensor(rand({5}, whole))));
  });
}

TEST(RandomParametersTest, RefuseWhatTheyCannotDo) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto t = rand({2}, mesh);
  const auto whole = at::zeros_like(t).to(at::kLong);
  auto noise = at::empty_like(t);
  EXPECT_EQ(
      error_of([&] { at::normal(t, t, at::detail::createCPUGenerator(1)); }),
      "[aten::normal.Tensor_Tensor] a generator was given, but a DTensor draws "
      "by global index from the stream of its rank. Leave the generator out, "
      "and seed that stream: dtensor::manual_seed() in C++, "
      "torch.manual_seed() in Python.");
  EXPECT_NE(
      error_of([&] {
        at::rand_like(t, at::detail::createCPUGenerator(1));
      }).find("Leave the generator out, and seed that stream"),
      std::string::npos);
  auto partial =
      DTensor::from_local(at::zeros({2}), mesh, {Partial(ReduceOp::kSum)});
  EXPECT_EQ(
      error_of([&] { at::rrelu_(partial, 0.1, 0.3, true); }),
      "[aten::rrelu_with_noise_] cannot fill f32[2] on (1): P(sum) with random "
      "values: they would be reduced over ranks. Redistribute it to Shard or "
      "Replicate first.");
  EXPECT_EQ(
      error_of([&] { at::normal(t, t - 1); }),
      "[aten::normal.Tensor_Tensor] needs std >= 0, but an element is "
      "negative or NaN. Clamp std.");
  EXPECT_EQ(
      error_of([&] { at::normal(t, -1.0); }),
      "[aten::normal.Tensor_float] needs std >= 0, got -1. Pass such a "
      "number.");
  EXPECT_EQ(
      error_of([&] { at::poisson(t - 1); }),
      "[aten::poisson] needs rates >= 0, but an element is negative or NaN. "
      "Clamp the rates.");
  EXPECT_EQ(
      error_of([&] { at::poisson(whole); }),
      "[aten::poisson] needs floating-point parameters, got self of i64. "
      "Convert it first.");
  EXPECT_EQ(
      error_of([&] { at::binomial(t, t.to(at::kDouble)); }),
      "[aten::binomial] needs parameters of one dtype, got f32 and f64. "
      "Convert "
      "one.");
  EXPECT_EQ(
      error_of([&] { at::rrelu_with_noise(t, noise, 0.5, 0.1, true); }),
      "[aten::rrelu_with_noise] needs finite lower <= upper, got 0.5 and 0.1. "
      "Pass finite bounds in this order.");
  EXPECT_EQ(
      error_of([&] { at::normal(t, at::ones({2})).sum(); }).substr(0, 86),
      "[aten::normal.Tensor_Tensor] got mixed plain tensor and DTensor: "
      "argument \"std\" is a p");
}

} // namespace TEST_SOURCE
} // namespace dtensor
