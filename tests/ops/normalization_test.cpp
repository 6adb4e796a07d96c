// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

const Placements kInput =
    {Replicate(), Shard(0), Shard(1), Shard(2), Partial(ReduceOp::kSum)};
const Placements kVector = {Replicate(), Shard(0)};

TEST(NormalizationTest, LayerNorm) {
  for (const auto rows : {1, 5}) {
    expect_same_as_plain(
        {"layer_norm",
         {variable({rows, 3, 4}, 1), variable({4}, 2), variable({4}, 3)},
         {kInput, kVector, kVector},
         [](const Tensors& t) {
           return at::layer_norm(t[0], {4}, t[1], t[2]);
         }});
  }
  expect_same_as_plain(
      {"layer_norm without parameters, two dimensions",
       {variable({5, 3, 4}, 1)},
       {kInput},
       [](const Tensors& t) {
         return at::layer_norm(t[0], {3, 4});
       }});
}

TEST(NormalizationTest, LayerNormIsTwiceDifferentiable) {
  const auto second_order = [](const Tensors& t) {
    const auto y = at::layer_norm(t[0], {4}, t[1], t[2]);
    const auto first = torch::autograd::grad(
        {y.pow(3).sum()}, {t[0]}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {t[0], t[1], t[2]});
  };
  const auto leaves = [] {
    return Tensors{variable({5, 3, 4}, 1), variable({4}, 2), variable({4}, 3)};
  };
  const auto truth = second_order(leaves());
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout : {Replicate(), Shard(0), Shard(1)}) {
      Tensors mine = leaves();
      for (size_t i = 0; i < mine.size(); ++i) {
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

TEST(NormalizationTest, RmsNorm) {
  expect_same_as_plain(
      {"rms_norm",
       {variable({5, 3, 4}, 1), variable({4}, 2)},
       {kInput, kVector},
       [](const Tensors& t) { return at::rms_norm(t[0], {4}, t[1], 1e-5); }});
  expect_same_as_plain(
      {"rms_norm without weight",
       {variable({5, 3, 4}, 1)},
       {kInput},
       [](const Tensors& t) { return at::rms_norm(t[0], {4}); }});
}

TEST(NormalizationTest, NativeLayerNorm) {
  expect_same_as_plain(
      {"native_layer_norm",
       {variable({5, 3, 4}, 1), variable({4}, 2), variable({4}, 3)},
       {kInput, kVector, kVector},
       [](const Tensors& t) {
         return std::get<0>(at::native_layer_norm(t[0], {4}, t[1], t[2], 1e-5));
       }});
}

TEST(NormalizationTest, GroupNorm) {
  expect_same_as_plain(
      {"group_norm",
       {variable({5, 4, 3}, 1), variable({4}, 2), variable({4}, 3)},
       {kInput, kVector, kVector},
       [](const Tensors& t) { return at::group_norm(t[0], 2, t[1], t[2]); }});
  expect_same_as_plain(
      {"native_group_norm",
       {variable({5, 4, 3}, 1), variable({4}, 2), variable({4}, 3)},
       {kInput, kVector, kVector},
       [](const Tensors& t) {
         return std::get<0>(
             at::native_group_norm(t[0], t[1], t[2], 5, 4, 3, 2, 1e-5));
       }});
}

TEST(NormalizationTest, BatchNorm) {
  expect_same_as_plain(
      {"batch_norm in training",
       {variable({5, 4, 3}, 1), variable({4}, 2), variable({4}, 3)},
       {kInput, kVector, kVector},
       [](const Tensors& t) {
         return at::batch_norm(
             t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false);
       }});
  expect_same_as_plain(
      {"batch_norm in evaluation",
       {variable({5, 4, 3}, 1),
        variable({4}, 2),
        variable({4}, 3),
        uniform({4}, 4),
        uniform({4}, 5)},
       {kInput, kVector, kVector, kVector, kVector},
       [](const Tensors& t) {
         return at::batch_norm(
             t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-5, false);
       }});
}

TEST(NormalizationTest, BatchNormUpdatesRunningStatisticsInPlace) {
  const auto x = uniform({5, 4, 3}, 1);
  auto plain_mean = at::zeros({4}, at::kDouble);
  auto plain_var = at::ones({4}, at::kDouble);
  at::batch_norm(x, {}, {}, plain_mean, plain_var, true, 0.1, 1e-5, false);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [&](const Placement& input, const Placement& running) {
      const auto mean = in_layout(at::zeros({4}, at::kDouble), mesh, {running});
      const auto var = in_layout(at::ones({4}, at::kDouble), mesh, {running});
      at::batch_norm(
          in_layout(x, mesh, {input}),
          {},
          {},
          mean,
          var,
          true,
          0.1,
          1e-5,
          false);
      EXPECT_TRUE(close(full(mean), plain_mean));
      EXPECT_TRUE(close(full(var), plain_var));
    };
    run(Replicate(), Replicate());
    run(Shard(1), Shard(0));
    run(Shard(0), Replicate());
    run(Shard(1), Replicate());
    run(Replicate(), Shard(0));
    try {
      run(Shard(1), Partial(ReduceOp::kSum));
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& e) {
      EXPECT_STREQ(
          e.what_without_backtrace(),
          "[aten::batch_norm] the layout of running_mean differs from that of "
          "the input's channels, so it cannot be updated in place. Shard both "
          "alike, or replicate both.");
    }
  });
}

// batch_norm of an empty input has the promoted dtype, because LibTorch
// multiplies the input by the weight and adds the bias.
TEST(NormalizationTest, BatchNormOfNothingHasTheDtypeOfItsParameters) {
  const auto ones = at::ones({4}, at::kDouble);
  for (const auto dtype : {at::kLong, at::kFloat, at::kDouble}) {
    const auto nothing = at::zeros({0, 4, 3}, dtype);
    const auto truth = at::batch_norm(
        nothing, ones, ones, ones, ones, false, 0.1, 1e-5, false);
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      for (const auto& layout : {Replicate(), Shard(0), Shard(1, 2)}) {
        const at::Tensor x = in_layout(nothing, mesh, {layout});
        const at::Tensor w = in_layout(ones, mesh, {Replicate()});
        const auto mine =
            at::batch_norm(x, w, w, w, w, false, 0.1, 1e-5, false);
        EXPECT_EQ(mine.scalar_type(), truth.scalar_type());
        EXPECT_EQ(mine.sizes(), truth.sizes());
      }
    });
  }
}

TEST(NormalizationTest, SequenceShardsNormalizeWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = in_layout(variable({2, 4, 4}, 1), mesh, {Shard(1)});
    auto w = in_layout(variable({4}, 2), mesh, {Replicate()});
    w.set_requires_grad(true);
    Collectives collectives;
    const auto y = at::layer_norm(x, {4}, w);
    EXPECT_TRUE(DTensor(y).placements()[0] == Shard(1));
    y.backward(y.detach());
    EXPECT_EQ(collectives.take(), "");
    EXPECT_TRUE(DTensor(w.grad()).placements()[0] == Partial(ReduceOp::kSum));
  });
}

TEST(NormalizationTest, InstanceNorm) {
  for (const auto& sizes : {Sizes{3, 2, 5}, Sizes{2, 3, 4, 3}}) {
    expect_same_as_plain(
        {"instance_norm",
         {variable(sizes, 1), variable({sizes[1]}, 2), variable({sizes[1]}, 3)},
         {kInput, kVector, kVector},
         [](const Tensors& t) {
           return at::instance_norm(
               t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false);
         }},
        12);
    expect_same_as_plain(
        {"instance_norm without parameters",
         {variable(sizes, 1)},
         {kInput},
         [](const Tensors& t) {
           return at::instance_norm(
               t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
         }},
        8);
  }
}

// instance_norm accepts a number as the vector of one channel.
TEST(NormalizationTest, StatisticsOfOneChannelMayBeNumbers) {
  const auto number = [](double value) {
    return at::scalar_tensor(value, at::kDouble);
  };
  const Placements layouts{Replicate(), Partial()};
  expect_same_as_plain(
      {"instance_norm",
       {variable({3, 1, 5}, 1), number(0.5), number(2)},
       {kInput, layouts, layouts},
       [](const Tensors& t) {
         return at::instance_norm(
             t[0], {}, {}, t[1], t[2], false, 0.1, 1e-5, false);
       }},
      24);
}

using Norm = std::function<at::Tensor(const Tensors&)>;

std::vector<std::pair<std::string, Norm>> channel_norms() {
  const auto batch = [](bool affine, bool training) {
    return [=](const Tensors& t) {
      const auto given = [&](bool wanted, size_t i) {
        return wanted ? std::optional(t[i]) : std::nullopt;
      };
      return at::batch_norm(
          t[0],
          given(affine, 1),
          given(affine, 2),
          given(!training, 3),
          given(!training, 4),
          training,
          0.1,
          1e-5,
          false);
    };
  };
  const auto instance = [](bool affine) {
    return [=](const Tensors& t) {
      return at::instance_norm(
          t[0],
          affine ? std::optional(t[1]) : std::nullopt,
          affine ? std::optional(t[2]) : std::nullopt,
          {},
          {},
          true,
          0.1,
          1e-5,
          false);
    };
  };
  return {
      {"batch_norm", batch(false, true)},
      {"batch_norm with parameters", batch(true, true)},
      {"batch_norm in evaluation", batch(false, false)},
      {"batch_norm in evaluation with parameters", batch(true, false)},
      {"instance_norm", instance(false)},
      {"instance_norm with parameters", instance(true)}};
}

// Returns gradients of a penalty on the gradient of a loss, the sum of norm(x)
// to some power. Power 0 stands for a sum of norm(x) with coefficients. For
// such a loss, linear in norm(x), the gradient depends on x only through the
// statistics, and a rank without channels has none. (pow(1) would not be
// linear, because its formula reads its input.)
Tensors gradients_of_penalty(Tensors t, const Norm& norm, int64_t power) {
  for (size_t i = 0; i < 3; ++i) {
    t[i] = t[i].detach().requires_grad_();
  }
  const auto y = norm(t);
  const auto loss = (power == 0 ? y * t[5] : y.pow(power)).sum();
  const auto first = torch::autograd::grad({loss}, {t[0]}, {}, true, true)[0];
  const auto penalty = (first + t[0]).pow(2).sum();
  return torch::autograd::grad(
      {penalty}, {t[0], t[1], t[2]}, {}, false, false, true);
}

// A rank without channels takes part in the collectives of second derivatives.
TEST(NormalizationTest, TwiceDifferentiableWithFewerChannelsThanRanks) {
  const Tensors plain{
      variable({5, 2, 3}, 1),
      variable({2}, 2),
      variable({2}, 3),
      uniform({2}, 4),
      uniform({2}, 5),
      uniform({5, 2, 3}, 6)};
  Failures failures;
  for (const auto& entry : channel_norms()) {
    const auto& name = entry.first;
    const auto& norm = entry.second;
    for (const int64_t power : {0, 1, 3}) {
      const auto truth = gradients_of_penalty(plain, norm, power);
      run_ranks(3, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {3});
        for (const auto& layout : {Replicate(), Shard(0), Shard(1)}) {
          Tensors t;
          for (const auto& full : plain) {
            t.push_back(
                in_layout(full, mesh, {t.empty() ? layout : Replicate()}));
          }
          const auto mine = gradients_of_penalty(t, norm, power);
          for (size_t i = 0; i < mine.size(); ++i) {
            const bool equal = mine[i].defined() == truth[i].defined() &&
                (!mine[i].defined() || close(full(mine[i]), truth[i]));
            if (!equal) {
              failures.add(c10::str(
                  name, " ", power, " ", to_string(layout), ": gradient ", i));
            }
          }
        }
      });
    }
  }
  EXPECT_EQ(failures.text(), "");
}

} // namespace TEST_SOURCE
} // namespace dtensor
