// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

const Placements kInput = {Replicate(), Shard(0), Shard(1), Shard(2)};
const Placements kVector = {Replicate(), Shard(0)};
const Placements kRunning = {Replicate()};

SameAsPlainOptions in_layouts(
    std::vector<Placements> placements,
    int64_t count = 24) {
  SameAsPlainOptions options;
  options.meshes = {{1}, {2}, {3}, {2, 2}, {2, 3}};
  options.placements = std::move(placements);
  options.layouts = count;
  return options;
}

Tensors operands(at::IntArrayRef sizes) {
  const auto channels = sizes[1];
  return {
      variable(sizes, 1),
      variable({channels}, 2),
      variable({channels}, 3),
      uniform({channels}, 4),
      uniform({channels}, 5)};
}

const std::vector<Placements> kLayouts =
    {kInput, kVector, kVector, kRunning, kRunning};

// The results and the running statistics, which are updated in place.
TEST(BatchNormTest, TrainsOnShardsOfSamplesAndSpace) {
  for (const auto& sizes :
       {Sizes{5, 4, 3}, Sizes{2, 3, 1, 5}, Sizes{7, 2}, Sizes{1, 2, 2, 1, 3}}) {
    const auto ndim = static_cast<int64_t>(sizes.size());
    auto layouts = kLayouts;
    for (int64_t d = 0; d < ndim; ++d) {
      layouts[0].push_back(Shard(d));
    }
    if (ndim == 2) {
      layouts[0] = {Replicate(), Shard(0), Shard(1)};
    }
    EXPECT_NO_THROW(expect_same_as_plain(
        [](const Tensors& t) {
          const auto mean = t[3].clone();
          const auto var = t[4].clone();
          const auto y = at::batch_norm(
              t[0], t[1], t[2], mean, var, true, 0.3, 1e-5, false);
          return Tensors{y, mean, var};
        },
        operands(sizes),
        in_layouts(layouts)))
        << at::IntArrayRef(sizes);
  }
}

TEST(BatchNormTest, HasOptionalParameters) {
  for (const bool has_weight : {false, true}) {
    EXPECT_NO_THROW(expect_same_as_plain(
        [&](const Tensors& t) {
          const auto weight = has_weight ? t[1] : at::Tensor();
          const auto bias = has_weight ? at::Tensor() : t[2];
          return Tensors{
              at::batch_norm(t[0], weight, {}, {}, {}, true, 0, 1e-5, false),
              at::batch_norm(t[0], {}, bias, {}, {}, true, 0, 1e-5, false)};
        },
        operands({5, 3, 4}),
        in_layouts(kLayouts, 12)));
  }
}

// LibTorch computes in the dtype of the running statistics. With means in
// BFloat16, results would differ by 0.05. The tolerance is about one rounding.
TEST(BatchNormTest, RunningStatisticsMayBeOfAWiderDtype) {
  auto generator = at::detail::createCPUGenerator(1);
  const auto input =
      (at::randn({8, 3, 4, 4}, generator) + 100).to(at::kBFloat16);
  const auto run = [](const at::Tensor& x, const auto& make) {
    return at::batch_norm(
        x,
        {},
        {},
        make(at::zeros({3})),
        make(at::ones({3})),
        true,
        0.1,
        1e-5,
        false);
  };
  const auto truth = run(input, [](const at::Tensor& t) { return t; });
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto of = [&](const at::Tensor& t, const Placement& p) {
      return distribute_tensor(t, mesh, {p}, std::nullopt);
    };
    for (const bool with_gradient : {false, true}) {
      at::Tensor x = of(input, Shard(0));
      x.set_requires_grad(with_gradient);
      const auto y =
          run(x, [&](const at::Tensor& t) { return of(t, Replicate()); });
      const auto full = DTensor(y.detach()).full_tensor();
      EXPECT_EQ(full.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::allclose(full, truth, 0.01, 0.01));
    }
  });
}

TEST(BatchNormTest, OperatorsBelowReturnStatistics) {
  using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  const auto listed = [](const Results& r) {
    return Tensors{std::get<0>(r), std::get<1>(r), std::get<2>(r)};
  };
  const auto with = [](Tensors results, const at::Tensor& mean, auto& var) {
    results.insert(results.end(), {mean, var});
    return results;
  };
  const std::vector<std::pair<std::string, TensorFunction>> cases{
      {"native_batch_norm",
       [&](const Tensors& t) {
         auto mean = t[3].clone();
         auto var = t[4].clone();
         auto r = listed(at::native_batch_norm(
             t[0], t[1], t[2], mean, var, true, 0.3, 1e-5));
         return with(r, mean, var);
       }},
      {"_native_batch_norm_legit",
       [&](const Tensors& t) {
         auto mean = t[3].clone();
         auto var = t[4].clone();
         auto r = listed(at::_native_batch_norm_legit(
             t[0], t[1], t[2], mean, var, true, 0.3, 1e-5));
         return with(r, mean, var);
       }},
      {"_native_batch_norm_legit.no_stats",
       [&](const Tensors& t) {
         return listed(
             at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.3, 1e-5));
       }},
      {"_native_batch_norm_legit_functional",
       [&](const Tensors& t) {
         const auto [a, b, c, d, e] = at::_native_batch_norm_legit_functional(
             t[0], t[1], t[2], t[3], t[4], true, 0.3, 1e-5);
         return Tensors{a, b, c, d, e};
       }},
      {"_native_batch_norm_legit_no_training",
       [&](const Tensors& t) {
         return listed(at::_native_batch_norm_legit_no_training(
             t[0], t[1], t[2], t[3], t[4], 0.3, 1e-5));
       }},
      {"_batch_norm_with_update",
       [&](const Tensors& t) {
         auto mean = t[3].clone();
         auto var = t[4].clone();
         const auto [a, b, c, reserve] = at::_batch_norm_with_update(
             t[0], t[1], t[2], mean, var, 0.3, 1e-5);
         return Tensors{a, b, c, reserve, mean, var};
       }},
      {"_batch_norm_no_update", [&](const Tensors& t) {
         const auto [a, b, c, reserve] =
             at::_batch_norm_no_update(t[0], t[1], t[2], t[3], t[4], 0.3, 1e-5);
         return Tensors{a, b, c, reserve};
       }}};
  for (const auto& [name, fn] : cases) {
    EXPECT_NO_THROW(
        expect_same_as_plain(fn, operands({5, 2, 4}), in_layouts(kLayouts, 12)))
        << name;
  }
}

// Second derivatives of the operator that its gradient formula calls.
TEST(BatchNormTest, NativeBatchNormIsTwiceDifferentiable) {
  const auto second_order = [](const Tensors& t) {
    const auto y = std::get<0>(
        at::native_batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5));
    const auto first = torch::autograd::grad(
        {y.pow(3).sum()}, {t[0]}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {t[0], t[1], t[2]});
  };
  const auto leaves = [] { return operands({5, 3, 4}); };
  const auto truth = second_order(leaves());
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout : kInput) {
      Tensors mine = leaves();
      for (size_t i = 0; i < 3; ++i) {
        mine[i] = in_layout(mine[i], mesh, {i == 0 ? layout : Replicate()});
        mine[i].set_requires_grad(true);
      }
      const auto got = second_order(mine);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(close(full(got[i]), truth[i]))
            << to_string(layout) << ", operand " << i;
      }
    }
  });
}

TEST(BatchNormTest, SendsStatisticsAloneAndKeepsTheLayout) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout : {Shard(0), Shard(2)}) {
      auto x = in_layout(uniform({4, 3, 64}, 1), mesh, {layout});
      x.set_requires_grad(true);
      Collectives collectives;
      const auto y = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
      EXPECT_EQ(collectives.take(), "all_gather 72"); // 9 doubles
      EXPECT_TRUE(DTensor(y).placements()[0] == layout);
      y.backward(y.detach());
      EXPECT_EQ(collectives.take(), "all_reduce 48");
      EXPECT_TRUE(DTensor(x.grad()).placements()[0] == layout);
    }
  });
}

// A network's own modules, which count batches and read flags.
TEST(BatchNormTest, ModulesTrainLikeOneDevice) {
  const auto train = [](const auto& bring, torch::nn::BatchNorm2d bn) {
    Tensors seen;
    for (uint64_t step = 0; step < 3; ++step) {
      const auto y = bn->forward(bring(uniform({5, 3, 4, 2}, step)));
      y.pow(2).sum().backward();
      seen.push_back(full(y.detach()));
    }
    bn->eval();
    seen.push_back(full(bn->forward(bring(uniform({5, 3, 4, 2}, 9))).detach()));
    for (const auto& t :
         {bn->running_mean, bn->running_var, bn->weight.grad()}) {
      seen.push_back(full(t));
    }
    return seen;
  };
  for (const std::optional<double> momentum :
       {std::optional(0.1), std::optional<double>()}) {
    const auto options = torch::nn::BatchNorm2dOptions(3).momentum(momentum);
    torch::nn::BatchNorm2d plain(options);
    plain->to(at::kDouble);
    const auto truth = train([](const at::Tensor& t) { return t; }, plain);
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      for (const auto& layout : kInput) {
        torch::nn::BatchNorm2d bn(options);
        bn->to(at::kDouble);
        distribute_module(*bn, mesh);
        const auto mine = train(
            [&](const at::Tensor& t) { return in_layout(t, mesh, {layout}); },
            bn);
        for (size_t i = 0; i < mine.size(); ++i) {
          EXPECT_TRUE(close(mine[i], truth[i]))
              << to_string(layout) << ", tensor " << i;
        }
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
