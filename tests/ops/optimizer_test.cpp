// SPDX-License-Identifier: BSD-3-Clause
// LibTorch's own optimizers and gradient clipping on distributed parameters
// give the same results as on plain parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <tests/ops/operands.h>

#include <functional>
#include <limits>
#include <optional>

namespace dtensor::testing {
namespace TEST_SOURCE {

using test_text::error_of;
using Params = std::vector<at::Tensor>;
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(Params)>;

constexpr int kSteps = 4;

// Parameter sizes that the number of ranks does not divide. One size is smaller
// than this number.
const std::vector<std::vector<int64_t>> kSizes = {{5, 3}, {3, 5}, {4}, {1}};
const std::vector<Placement> kLayouts = {
    Shard(0),
    Shard(1),
    Replicate(),
    Shard(0)};

at::Tensor gradient_of(size_t param, int step) {
  return uniform(kSizes[param], 100 * param + static_cast<size_t>(step)) - 0.5;
}

Params plain_params() {
  Params params;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    params.push_back(uniform(kSizes[i], i).requires_grad_());
  }
  return params;
}

Params placed_params(const DeviceMesh& mesh) {
  Params params;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    auto p = place(uniform(kSizes[i], i), mesh, kLayouts[i]).detach();
    params.push_back(p.requires_grad_());
  }
  return params;
}

void set_gradients(const Params& params, int step, const DeviceMesh* mesh) {
  for (size_t i = 0; i < params.size(); ++i) {
    const auto g = gradient_of(i, step);
    params[i].mutable_grad() = mesh ? place(g, *mesh, kLayouts[i]) : g;
  }
}

void run_steps(
    torch::optim::Optimizer& optimizer,
    const Params& params,
    const DeviceMesh* mesh) {
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    set_gradients(params, step, mesh);
    optimizer.step();
  }
}

void expect_like_plain(const MakeOptimizer& make) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      const auto plain = plain_params();
      const auto placed = placed_params(mesh);
      run_steps(*make(plain), plain, nullptr);
      run_steps(*make(placed), placed, &mesh);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(at::allclose(
            full(placed[i].detach()), plain[i].detach(), 1e-12, 1e-12))
            << "parameter " << i << " on " << ranks << " ranks";
        EXPECT_EQ(DTensor(placed[i]).placements()[0], kLayouts[i]);
      }
    });
  }
}

template <class Optimizer, class Options>
MakeOptimizer maker(Options options) {
  return [options](Params params) {
    return std::make_unique<Optimizer>(std::move(params), options);
  };
}

TEST(Optimizer, Sgd) {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  expect_like_plain(maker<SGD>(SGDOptions(0.1)));
  expect_like_plain(
      maker<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.1)));
  expect_like_plain(maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)));
}

TEST(Optimizer, Adam) {
  using torch::optim::Adam;
  using torch::optim::AdamOptions;
  expect_like_plain(maker<Adam>(AdamOptions(0.01)));
  expect_like_plain(
      maker<Adam>(AdamOptions(0.01).amsgrad(true).weight_decay(0.1)));
}

TEST(Optimizer, AdamW) {
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  expect_like_plain(maker<AdamW>(AdamWOptions(0.01)));
  expect_like_plain(maker<AdamW>(AdamWOptions(0.01).amsgrad(true)));
}

TEST(Optimizer, Adagrad) {
  using torch::optim::AdagradOptions;
  expect_like_plain(
      maker<torch::optim::Adagrad>(AdagradOptions(0.01).lr_decay(0.1)));
}

TEST(Optimizer, RmsProp) {
  using torch::optim::RMSprop;
  using torch::optim::RMSpropOptions;
  expect_like_plain(maker<RMSprop>(RMSpropOptions(0.01)));
  expect_like_plain(
      maker<RMSprop>(RMSpropOptions(0.01).centered(true).momentum(0.9)));
}

// Minimizes the sum of squares of the parameters.
double minimise(const Params& params) {
  torch::optim::LBFGS optimizer(params, torch::optim::LBFGSOptions(0.5));
  const auto loss = [&] {
    optimizer.zero_grad();
    at::Tensor total;
    for (const auto& p : params) {
      const auto term = (p * p + p).sum();
      total = total.defined() ? total + term : term;
    }
    total.backward();
    return total;
  };
  double last = 0;
  for (int step = 0; step < 2; ++step) {
    last = optimizer.step(loss).item<double>();
  }
  return last;
}

TEST(Optimizer, Lbfgs) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    // LBFGS flattens parameters, which requires even shards.
    const Params plain = {
        uniform({4, 3}, 0).requires_grad_(), uniform({5}, 1).requires_grad_()};
    const Params placed = {
        place(uniform({4, 3}, 0), mesh, Shard(0)).detach().requires_grad_(),
        place(uniform({5}, 1), mesh, Replicate()).detach().requires_grad_()};
    EXPECT_NEAR(minimise(placed), minimise(plain), 1e-10);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::allclose(
          full(placed[i].detach()), plain[i].detach(), 1e-9, 1e-9));
    }
  });
}

void expect_same_gradients(const Params& placed, const Params& plain) {
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(
        at::allclose(full(placed[i].grad()), plain[i].grad(), 1e-12, 1e-12))
        << "gradient " << i;
    EXPECT_EQ(DTensor(placed[i].grad()).placements()[0], kLayouts[i]);
  }
}

TEST(Optimizer, ClipGradNormOfMixedLayouts) {
  constexpr auto kInf = std::numeric_limits<double>::infinity();
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const double order : {2.0, 1.0, 3.0, 0.0, kInf}) {
        const auto plain = plain_params();
        const auto placed = placed_params(mesh);
        set_gradients(plain, 0, nullptr);
        set_gradients(placed, 0, &mesh);
        const double expected =
            torch::nn::utils::clip_grad_norm_(plain, 0.3, order, true);
        const double norm =
            torch::nn::utils::clip_grad_norm_(placed, 0.3, order, true);
        EXPECT_NEAR(norm, expected, 1e-12 * expected) << "order " << order;
        expect_same_gradients(placed, plain);
      }
    });
  }
}

TEST(Optimizer, ClipGradNormOfAPartialGradient) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto plain = uniform({5, 3}, 0).requires_grad_();
    plain.mutable_grad() = uniform({5, 3}, 1);
    auto placed =
        place(uniform({5, 3}, 0), mesh, Replicate()).detach().requires_grad_();
    placed.mutable_grad() = place(uniform({5, 3}, 1), mesh, Partial());
    const double expected = torch::nn::utils::clip_grad_norm_(plain, 0.3);
    EXPECT_NEAR(
        torch::nn::utils::clip_grad_norm_(placed, 0.3), expected, 1e-12);
    EXPECT_TRUE(at::allclose(full(placed.grad()), plain.grad(), 1e-12, 1e-12));
  });
}

TEST(Optimizer, ClipGradValueAndZeroGrad) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = plain_params();
    const auto placed = placed_params(mesh);
    set_gradients(plain, 0, nullptr);
    set_gradients(placed, 0, &mesh);
    torch::nn::utils::clip_grad_value_(plain, 0.1);
    torch::nn::utils::clip_grad_value_(placed, 0.1);
    expect_same_gradients(placed, plain);
    torch::optim::SGD optimizer(placed, torch::optim::SGDOptions(0.1));
    optimizer.zero_grad(/*set_to_none=*/false);
    for (const auto& p : placed) {
      EXPECT_TRUE(at::equal(full(p.grad()), at::zeros(p.sizes(), at::kDouble)));
    }
  });
}

TEST(Optimizer, ClipGradValueOfAPartialGradientIsRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto placed =
        place(uniform({3}, 0), mesh, Replicate()).detach().requires_grad_();
    placed.mutable_grad() = place(uniform({3}, 1), mesh, Partial());
    const std::string error =
        "the in-place operator would change the layout of self, f64[3] on (2): "
        "P(sum), on mesh dim 0; the operands are f64[3] on (2): P(sum). "
        "Redistribute self first, or use the out-of-place operator.";
    EXPECT_EQ(
        error_of([&] { torch::nn::utils::clip_grad_value_(placed, 0.1); }),
        "[aten::clamp_] " + error);
    EXPECT_EQ(
        error_of([&] { at::_foreach_clamp_min_({placed.grad()}, 0.1); }),
        "[aten::clamp_min_] " + error);
    EXPECT_EQ(
        error_of([&] { at::_foreach_sign_({placed.grad()}); }),
        "[aten::sign_] " + error);
  });
}

void fused_adamw(const Params& params, const Params& averages) {
  Params grads, firsts, seconds, steps;
  for (size_t i = 0; i < params.size(); ++i) {
    grads.push_back(params[i].grad());
    firsts.push_back(averages[2 * i]);
    seconds.push_back(averages[2 * i + 1]);
    // The step count of a parameter may be distributed, too.
    const bool is_distributed = i == 0 && is_dtensor(params[i]);
    steps.push_back(
        is_distributed
            ? distribute_tensor(
                  at::ones({}), DTensor(params[i]).device_mesh(), {Replicate()})
            : at::ones({}));
  }
  torch::NoGradGuard no_grad;
  at::_fused_adamw_(
      params,
      grads,
      firsts,
      seconds,
      {},
      steps,
      0.01,
      0.9,
      0.99,
      0.1,
      1e-8,
      /*amsgrad=*/false,
      /*maximize=*/false);
}

// Runs steps of SGD and Adagrad. SGD uses the first of a parameter's two
// averages as its momentum, and Adagrad uses it as its sum of squares.
void fused_sgd_and_adagrad(const Params& params, const Params& averages) {
  Params grads, firsts, seconds, steps;
  for (size_t i = 0; i < params.size(); ++i) {
    grads.push_back(params[i].grad());
    firsts.push_back(averages[2 * i]);
    seconds.push_back(averages[2 * i + 1]);
    steps.push_back(at::ones({}));
  }
  torch::NoGradGuard no_grad;
  at::_fused_sgd_(
      params,
      grads,
      firsts,
      /*weight_decay=*/0.1,
      /*momentum=*/0.9,
      /*lr=*/0.01,
      /*dampening=*/0.2,
      /*nesterov=*/false,
      /*maximize=*/false,
      /*is_first_step=*/false);
  at::_fused_adagrad_(
      params,
      grads,
      seconds,
      steps,
      /*lr=*/0.01,
      /*lr_decay=*/0.1,
      /*weight_decay=*/0.1,
      /*eps=*/1e-8,
      /*maximize=*/false);
}

// Compares a step with the step on plain tensors. `gradients` is the layout of
// the gradients if it differs from the parameters' layout.
void expect_same_fused_step(
    void (*step)(const Params&, const Params&),
    std::optional<Placement> gradients = std::nullopt) {
  run_ranks(3, [=] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = plain_params();
    const auto placed = placed_params(mesh);
    set_gradients(plain, 0, nullptr);
    set_gradients(placed, 0, &mesh);
    for (size_t i = 0; gradients && i < plain.size(); ++i) {
      placed[i].mutable_grad() = place(plain[i].grad(), mesh, *gradients);
    }
    Params plain_state, placed_state;
    for (size_t i = 0; i < 2 * plain.size(); ++i) {
      plain_state.push_back(uniform(kSizes[i / 2], i));
      placed_state.push_back(
          place(uniform(kSizes[i / 2], i), mesh, kLayouts[i / 2]));
    }
    step(plain, plain_state);
    step(placed, placed_state);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::allclose(
          full(placed[i].detach()), plain[i].detach(), 1e-12, 1e-12));
    }
  });
}

TEST(Optimizer, FusedSteps) {
  expect_same_fused_step(fused_adamw);
  expect_same_fused_step(fused_sgd_and_adagrad);
}

TEST(Optimizer, FusedStepsRedistributeGradients) {
  for (const auto& gradients : {Partial(), Shard(0), Replicate()}) {
    expect_same_fused_step(fused_adamw, gradients);
    expect_same_fused_step(fused_sgd_and_adagrad, gradients);
  }
}

TEST(Optimizer, FusedStepsUnscaleGradientsInTheirLayouts) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& of_gradient : {Partial(), Shard(0), Replicate()}) {
      const auto p = place(at::ones({3}), mesh, Replicate());
      const auto gradient = place(at::full({3}, 8.0f), mesh, of_gradient);
      at::_fused_sgd_(
          {p},
          {gradient},
          {},
          /*weight_decay=*/0,
          /*momentum=*/0,
          /*lr=*/1.0,
          /*dampening=*/0,
          /*nesterov=*/false,
          /*maximize=*/false,
          /*is_first_step=*/true,
          /*grad_scale=*/at::scalar_tensor(4.0),
          /*found_inf=*/at::zeros({}));
      EXPECT_TRUE(at::equal(full(p), at::full({3}, -1.0f)));
      EXPECT_TRUE(at::equal(full(gradient), at::full({3}, 2.0f)));
      EXPECT_EQ(DTensor(gradient).placements()[0], of_gradient);
    }
  });
}

TEST(Optimizer, StatesHaveTheLayoutOfTheParameter) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto step = [&](const Placement& of_momentum) {
      const auto p = place(at::ones({4}), mesh, Shard(0));
      at::_fused_sgd_(
          {p},
          {place(at::ones({4}), mesh, Shard(0))},
          {place(at::ones({4}), mesh, of_momentum)},
          /*weight_decay=*/0,
          /*momentum=*/0.9,
          /*lr=*/1.0,
          /*dampening=*/0,
          /*nesterov=*/false,
          /*maximize=*/false,
          /*is_first_step=*/false);
    };
    EXPECT_THAT(
        error_of([&] { step(Partial()); }),
        ::testing::HasSubstr(
            "[aten::_fused_sgd_] cannot update a partial tensor"));
    EXPECT_THAT(
        error_of([&] { step(Replicate()); }),
        ::testing::HasSubstr(
            "[aten::_fused_sgd_] a parameter and its state differ in layout"));
  });
}

// The layouts are equal, but the ranks have other rows.
TEST(Optimizer, FusedStepsRefuseGradientsOnAnotherMesh) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto other = make_device_mesh(at::kCPU, {2}, {1, 0});
    const auto parameter = place(at::ones({4}), mesh, Shard(0));
    const auto step = [&](const DeviceMesh& of_gradient,
                          const DeviceMesh& of_momentum) {
      at::_fused_sgd_(
          {parameter},
          {place(at::ones({4}), of_gradient, Shard(0))},
          {place(at::ones({4}), of_momentum, Shard(0))},
          0,
          0.5,
          1,
          0,
          false,
          false,
          false);
    };
    const auto refused = ::testing::HasSubstr(
        "[aten::_fused_sgd_] the operands live on different meshes");
    EXPECT_THAT(error_of([&] { step(other, mesh); }), refused);
    EXPECT_THAT(error_of([&] { step(mesh, other); }), refused);
    step(mesh, mesh);
  });
}

TEST(Optimizer, AScalerRefusesPlainGradientsBesideDistributedOnes) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto distributed = place(at::ones({3}), mesh, Shard(0));
    auto found = at::zeros({1});
    EXPECT_THAT(
        error_of([&] {
          at::_amp_foreach_non_finite_check_and_unscale_(
              {distributed, at::ones({3})}, found, at::full({1}, 0.5f));
        }),
        ::testing::HasSubstr(
            "got mixed plain tensor and DTensor: a list holds a plain"));
  });
}

TEST(Optimizer, AScalerTakesPlainGradientsInImplicitReplication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const ImplicitReplication scope;
    auto distributed = place(uniform({5, 3}, 0), mesh, Shard(0));
    auto plain = at::full({3}, 4.0, at::kDouble);
    auto found = at::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_(
        {plain, distributed}, found, at::full({1}, 0.5f));
    EXPECT_EQ(found.item<float>(), 0);
    EXPECT_TRUE(at::equal(plain, at::full({3}, 2.0, at::kDouble)));
    EXPECT_TRUE(close(full(distributed), uniform({5, 3}, 0) * 0.5));
  });
}

// In Half, both terms of the sum are finite, but the sum is not.
TEST(Optimizer, AnInfiniteSumOfFiniteTermsIsFound) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const float term : {40000.0f, 2.0f}) {
      const auto gradient = DTensor::from_local(
          at::full({3}, term, at::kHalf), mesh, {Partial()});
      auto found = at::zeros({1});
      at::_amp_foreach_non_finite_check_and_unscale_(
          {gradient}, found, at::full({1}, 0.5f));
      EXPECT_EQ(found.item<float>(), term > 2 ? 1 : 0);
      if (term == 2) {
        EXPECT_EQ(DTensor(gradient).placements()[0], Partial());
        EXPECT_TRUE(at::equal(full(gradient), at::full({3}, 2.0, at::kHalf)));
      }
    }
  });
}

TEST(Optimizer, AnInfinityInOneShardIsFoundOnEveryRank) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto gradient = uniform({5, 3}, 0);
    gradient[4][0] = std::numeric_limits<double>::infinity();
    auto found = at::zeros({}, at::kFloat);
    const auto finite = place(uniform({5, 3}, 0), mesh, Shard(0));
    const auto scale = at::full({}, 0.5, at::kFloat);
    at::_amp_foreach_non_finite_check_and_unscale_({finite}, found, scale);
    EXPECT_EQ(found.item<float>(), 0);
    EXPECT_TRUE(at::allclose(full(finite), uniform({5, 3}, 0) * 0.5));
    at::_amp_foreach_non_finite_check_and_unscale_(
        {place(gradient, mesh, Shard(0))}, found, scale);
    EXPECT_EQ(found.item<float>(), 1);
  });
}

TEST(Optimizer, AModuleOfDTensorsConvertsAndClones) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    torch::nn::Linear linear(4, 5);
    const auto weight = linear->weight.detach().clone();
    torch::NoGradGuard no_grad;
    linear->weight.set_data(distribute_tensor(weight, mesh, {Shard(0)}));
    const auto copy =
        std::dynamic_pointer_cast<torch::nn::LinearImpl>(linear->clone());
    linear->weight.zero_();
    EXPECT_EQ(DTensor(copy->weight).placements()[0], Shard(0));
    EXPECT_TRUE(at::allclose(
        full(copy->weight), full(distribute_tensor(weight, mesh, {Shard(0)}))));
    copy->to(at::kDouble);
    EXPECT_EQ(copy->weight.scalar_type(), at::kDouble);
    EXPECT_EQ(DTensor(copy->weight).to_local().scalar_type(), at::kDouble);
    EXPECT_EQ(DTensor(copy->weight).placements()[0], Shard(0));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
