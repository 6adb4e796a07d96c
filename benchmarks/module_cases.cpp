// SPDX-License-Identifier: BSD-3-Clause
#include "op_cases.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/parallel/linear_styles.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

namespace bench {
namespace {

constexpr int64_t kSide = 8;

struct MLPImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return w2(at::relu(w1(x)));
  }

  torch::nn::Linear w1 =
      register_module("w1", torch::nn::Linear(kSide, 2 * kSide));
  torch::nn::Linear w2 =
      register_module("w2", torch::nn::Linear(2 * kSide, kSide));
};
TORCH_MODULE(MLP);

void train(MLP& mlp, const at::Tensor& x) {
  mlp->zero_grad();
  mlp(x).sum().backward();
}

// Runs the forward pass without autograd, or forward and backward.
std::function<void()> step(MLP mlp, const at::Tensor& x, bool backward) {
  if (backward) {
    return [mlp, x]() mutable { train(mlp, x); };
  }
  return [mlp, x]() mutable { mlp(x); };
}

} // namespace

std::vector<Case> module_cases(int64_t world_size, bool backward) {
  MLP plain, parallel;
  dtensor::parallelize_module(
      *parallel,
      dtensor::init_device_mesh(at::kCPU, {world_size}),
      {{"w1", dtensor::ColwiseParallel()}, {"w2", dtensor::RowwiseParallel()}});
  const auto x = at::randn({kSide, kSide});
  return {{"mlp", step(parallel, x, backward), step(plain, x, backward)}};
}

} // namespace bench
