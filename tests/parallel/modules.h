// SPDX-License-Identifier: BSD-3-Clause
// Shared helpers of the style tests: modules with the same parameters on every
// rank, comparison with the plain module, and small models.
#pragma once

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/style.h>
#include <dtensor/tensor/dtensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace dtensor::test_modules {

/// Returns uniform values in (-1, 1), float64, the same on every rank.
inline at::Tensor uniform(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(sizes, generator, at::kDouble) * 2 - 1;
}

/// Returns the module in float64, with the same parameters on every rank.
template <class Holder>
Holder filled(Holder module, uint64_t seed = 1) {
  const torch::NoGradGuard no_grad;
  module->to(torch::kDouble);
  for (auto& parameter : module->parameters()) {
    parameter.copy_(uniform(parameter.sizes(), seed++));
  }
  return module;
}

inline at::Tensor full(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach();
}

/// Returns this rank's shard of `whole` in that layout.
inline at::Tensor
part(const at::Tensor& whole, const DeviceMesh& mesh, const Placement& layout) {
  return to_local(
             distribute_tensor(whole.detach(), mesh, {layout}, std::nullopt))
      .clone();
}

inline Placement layout_of(const at::Tensor& t) {
  return DTensor(t).placements()[0];
}

inline void expect_close(
    const at::Tensor& mine,
    const at::Tensor& truth,
    const std::string& what,
    double tolerance = 1e-12) {
  ASSERT_EQ(mine.defined(), truth.defined()) << what;
  if (!mine.defined()) {
    return;
  }
  const auto whole = full(mine);
  ASSERT_EQ(whole.sizes(), truth.sizes()) << what;
  if (whole.numel() > 0) {
    const auto off = (whole.to(at::kDouble) - truth.detach().to(at::kDouble))
                         .abs()
                         .max()
                         .item<double>();
    EXPECT_LE(off, tolerance) << what;
  }
}

/// Compares gradients of parameters with equal names. Each must have its
/// parameter's layout.
inline void expect_same_gradients(
    const torch::nn::Module& mine,
    const torch::nn::Module& plain,
    const std::string& what,
    double tolerance = 1e-12) {
  const auto truth = plain.named_parameters();
  for (const auto& item : mine.named_parameters()) {
    const auto& p = item.value();
    const auto& grad = p.grad();
    expect_close(
        grad,
        truth[item.key()].grad(),
        what + ": gradient of " + item.key(),
        tolerance);
    if (grad.defined()) {
      ASSERT_EQ(is_dtensor(grad), is_dtensor(p)) << what << ": " << item.key();
    }
    if (grad.defined() && is_dtensor(p)) {
      EXPECT_EQ(layout_of(grad), layout_of(p)) << what << ": " << item.key();
    }
  }
}

/// Returns the text of the first error, or "" if there is none.
template <class Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t hidden, bool bias = true)
      : w1(register_module(
            "w1",
            torch::nn::Linear(
                torch::nn::LinearOptions(width, hidden).bias(bias)))),
        w2(register_module(
            "w2",
            torch::nn::Linear(
                torch::nn::LinearOptions(hidden, width).bias(bias)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return w2(torch::gelu(w1(x)));
  }
  torch::nn::Linear w1;
  torch::nn::Linear w2;
};
TORCH_MODULE(Mlp);

inline ParallelizePlan mlp_plan() {
  return {{"w1", ColwiseParallel()}, {"w2", RowwiseParallel()}};
}

inline void expect_same_parameters(
    const torch::nn::Module& mine,
    const torch::nn::Module& plain) {
  const auto truth = plain.named_parameters();
  for (const auto& item : mine.named_parameters()) {
    expect_close(item.value(), truth[item.key()], item.key(), 1e-10);
  }
}

/// Takes three steps on batches of four rows of six.
template <class Model>
void train(Model& model, torch::optim::Optimizer& optimizer) {
  for (uint64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->forward(uniform({4, 6}, step)).square().sum().backward();
    optimizer.step();
  }
}

} // namespace dtensor::test_modules
