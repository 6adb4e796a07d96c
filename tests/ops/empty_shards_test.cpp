// SPDX-License-Identifier: BSD-3-Clause
// Second derivatives where a rank has an empty shard. Its gradients must depend
// on the same tensors as those of other ranks: otherwise ranks communicate
// differently.
#include <c10/util/ScopeExit.h>

#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

// Returns the gradients of the operands, and the derivatives of these
// gradients, for a cotangent that also requires a gradient.
Tensors derivatives(
    const std::function<at::Tensor(const Tensors&)>& fn,
    const Tensors& operands) {
  Tensors variables;
  for (const auto& operand : operands) {
    if (operand.requires_grad()) {
      variables.push_back(operand);
    }
  }
  const auto result = fn(operands);
  const auto cotangent = (result.detach() * 0 + 0.5).requires_grad_(true);
  auto gradients = torch::autograd::grad(
      {result},
      variables,
      {cotangent},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const auto& gradient : gradients) {
    sum = sum + gradient.abs().square().sum();
  }
  variables.push_back(cotangent);
  const auto second = torch::autograd::grad(
      {sum},
      variables,
      {},
      /*retain_graph=*/std::nullopt,
      /*create_graph=*/false,
      /*allow_unused=*/true);
  for (size_t i = 0; i < second.size(); ++i) {
    gradients.push_back(
        second[i].defined() ? second[i] : at::zeros_like(variables[i]));
  }
  return gradients;
}

// Returns for each operand's gradient whether autograd recorded it. The
// cotangent is a constant.
std::vector<bool> records_gradients(
    const std::function<at::Tensor(const Tensors&)>& fn,
    const Tensors& operands) {
  std::vector<bool> records;
  const auto sum = fn(operands).sum();
  for (const auto& operand : operands) {
    if (operand.requires_grad()) {
      records.push_back(torch::autograd::grad(
                            {sum},
                            {operand},
                            {},
                            /*retain_graph=*/true,
                            /*create_graph=*/true)[0]
                            .requires_grad());
    }
  }
  return records;
}

// Compares the derivatives on three ranks, given the layouts of the operands.
void check(const Oracle& o) {
  const auto expected = derivatives(o.fn, o.operands);
  const auto records = records_gradients(o.fn, o.operands);
  for (size_t layout = 0; layout < o.choices[0].size(); ++layout) {
    SCOPED_TRACE(o.name + " " + std::to_string(layout));
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      const ImplicitReplication replicated;
      Tensors operands;
      for (size_t i = 0; i < o.operands.size(); ++i) {
        const auto& operand = o.operands[i];
        operands.push_back(
            distribute_tensor(
                operand.detach(), mesh, {o.choices[i][layout]}, std::nullopt)
                .requires_grad_(operand.requires_grad()));
      }
      EXPECT_EQ(records_gradients(o.fn, operands), records);
      const auto got = derivatives(o.fn, operands);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(full_tensor(got[i]), expected[i])) << i;
      }
    });
  }
}

TEST(EmptyShards, SecondDerivativesOfConvolutions) {
  const auto x = variable({2, 2, 6, 5}, 1);
  const auto weight = variable({2, 2, 3, 2}, 2);
  const auto bias = variable({2}, 3);
  const Placements inputs = {
      Shard(0), Shard(1), Replicate(), Shard(2), Replicate()};
  const Placements weights = {
      Replicate(), Shard(1), Shard(0), Replicate(), Replicate()};
  const Placements biases = {
      Replicate(), Replicate(), Shard(0), Replicate(), Shard(0)};
  const auto convolution = [](const Tensors& t) {
    return at::conv2d(t[0], t[1], t[2], 1, 1);
  };
  const auto transposed = [](const Tensors& t) {
    return at::conv_transpose2d(t[0], t[1], {}, 1, 1);
  };
  check({"conv2d", {x, weight, bias}, {inputs, weights, biases}, convolution});
  check({"transposed", {x, weight}, {inputs, weights}, transposed});
  check({"no bias", {x, weight}, {inputs, weights}, [](const Tensors& t) {
           return at::conv2d(t[0], t[1], {}, 1, 1);
         }});
  check(
      {"transposed with bias",
       {x, weight, bias},
       {inputs, weights, biases},
       [](const Tensors& t) {
         return at::conv_transpose2d(t[0], t[1], t[2], 1, 1);
       }});
  // 4 rows on 3 ranks
  check(
      {"transposed with few rows",
       {variable({2, 2, 2, 5}, 4), weight, bias},
       {{Shard(2)}, {Replicate()}, {Replicate()}},
       [](const Tensors& t) {
         return at::conv_transpose2d(t[0], t[1], t[2]);
       }});
  // Some operands are constant.
  check(
      {"constant weight",
       {x, weight.detach(), bias.detach()},
       {inputs, weights, biases},
       convolution});
  check(
      {"constant input",
       {x.detach(), weight, bias},
       {inputs, weights, biases},
       convolution});
}

TEST(EmptyShards, SecondDerivativesOfPoolingAndPadding) {
  const auto x = variable({2, 2, 6, 4}, 4);
  const Placements layouts = {Shard(0), Shard(1)};
  const std::vector<std::pair<std::string, at::Tensor (*)(const at::Tensor&)>>
      all = {
          {"avg_pool",
           [](const at::Tensor& t) { return at::avg_pool2d(t, 2); }},
          {"max_pool",
           [](const at::Tensor& t) { return at::max_pool2d(t, 2); }},
          {"adaptive_avg_pool",
           [](const at::Tensor& t) {
             return at::adaptive_avg_pool2d(t, {3, 2});
           }},
          {"adaptive_max_pool",
           [](const at::Tensor& t) {
             return std::get<0>(at::adaptive_max_pool2d(t, {3, 2}));
           }},
          {"reflection_pad",
           [](const at::Tensor& t) {
             return at::reflection_pad2d(t, {1, 1, 2, 1});
           }},
          {"replication_pad",
           [](const at::Tensor& t) {
             return at::replication_pad2d(t, {1, 1, 2, 1});
           }},
          {"upsample",
           [](const at::Tensor& t) {
             return at::upsample_bilinear2d(t, {12, 8}, false);
           }},
          {"im2col",
           [](const at::Tensor& t) {
             return at::im2col(t, {2, 2}, {1, 1}, {0, 0}, {1, 1});
           }},
      };
  for (const auto& [name, fn] : all) {
    // The square lets the gradient depend on the operand.
    check({name, {x}, {layouts}, [&, f = fn](const Tensors& t) {
             return f(t[0]).square();
           }});
    check({name, {x}, {layouts}, [&, f = fn](const Tensors& t) {
             return f(t[0].square());
           }});
    check({name, {x}, {layouts}, [&, f = fn](const Tensors& t) {
             return f(t[0]);
           }});
  }
}

TEST(EmptyShards, SecondDerivativesOfScans) {
  const auto x = variable({2, 4}, 6);
  const Placements layouts = {Shard(0)};
  for (const int64_t dim : {0, 1}) {
    check({"logcumsumexp", {x}, {layouts}, [&](const Tensors& t) {
             return t[0].logcumsumexp(dim);
           }});
    check({"cumprod", {x}, {layouts}, [&](const Tensors& t) {
             return t[0].cumprod(dim);
           }});
  }
}

// Fused attention, which LibTorch 2.15 chooses for these operands, has no
// second derivative.
TEST(EmptyShards, SecondDerivativesOfAttention) {
  at::globalContext().setSDPUseFlash(false);
  const auto restore =
      c10::make_scope_exit([] { at::globalContext().setSDPUseFlash(true); });
  const auto x = variable({2, 4, 2}, 7);
  const auto heads = variable({2, 4, 3}, 8);
  for (const bool causal : {false, true}) {
    const auto attend = [&](const Tensors& t) {
      return at::scaled_dot_product_attention(
          t.front(), t.at(t.size() / 2), t.back(), {}, 0, causal);
    };
    check({"one operand", {x}, {{Shard(0), Shard(2)}}, attend});
    check(
        {"two operands",
         {heads, variable({2, 4, 3}, 9)},
         {{Shard(0), Replicate()}, {Replicate(), Shard(0)}},
         attend});
    check(
        {"features of values",
         {heads, variable({2, 4, 3}, 9), x},
         {{Replicate(), Shard(0)},
          {Replicate(), Shard(0)},
          {Shard(2), Shard(0)}},
         attend});
  }
}

TEST(EmptyShards, DerivativesOfComplexPadding) {
  const auto x = at::complex(uniform({2, 2, 4}, 1), uniform({2, 2, 4}, 2))
                     .requires_grad_(true);
  check({"reflection_pad", {x}, {{Shard(0), Shard(1)}}, [](const Tensors& t) {
           return at::view_as_real(at::reflection_pad1d(t[0], {1, 2}))
               .square()
               .sum(-1);
         }});
}

TEST(EmptyShards, SecondDerivativesOfDeterminants) {
  const auto x = (variable({2, 3, 3}, 5) + 2 * at::eye(3, at::kDouble))
                     .detach()
                     .requires_grad_(true);
  check({"det", {x}, {{Shard(0)}}, [](const Tensors& t) {
           return at::linalg_det(t[0]);
         }});
  check(
      {"det of one element",
       {variable({2, 1, 1}, 6)},
       {{Shard(0)}},
       [](const Tensors& t) { return at::linalg_det(t[0]); }});
  check({"slogdet", {x}, {{Shard(0)}}, [](const Tensors& t) {
           return std::get<1>(at::linalg_slogdet(t[0]));
         }});
  check({"inverse", {x}, {{Shard(0)}}, [](const Tensors& t) {
           return at::linalg_inv(t[0]);
         }});
}

} // namespace TEST_SOURCE
} // namespace dtensor
