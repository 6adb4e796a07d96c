// SPDX-License-Identifier: BSD-3-Clause
// A program whose rank 0 evaluates or saves its sharded model alone, a frequent
// error of programs that were written for replicated models.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/style.h>
#include <torch/torch.h>

#include <string>

namespace dtensor::test {

struct PairImpl : torch::nn::Module {
  PairImpl()
      : up(register_module("up", torch::nn::Linear(6, 12))),
        down(register_module("down", torch::nn::Linear(12, 6))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return down(torch::relu(up(x)));
  }
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Pair);

constexpr int kSteps = 4;

/// Trains a model for kSteps steps. After `round` steps, rank 0 alone performs
/// `what`: "evaluate", or "save" to `path`.
inline void train_with_rank_zero_alone(
    const std::string& what,
    int round,
    const std::string& path) {
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()}, {"tp"});
  torch::manual_seed(0);
  Pair model;
  parallelize_module(
      *model, mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step <= kSteps; ++step) {
    if (step == round && get_rank() == 0) {
      if (what == "save") {
        save_checkpoint(path, {.model = model.get()});
      } else {
        const torch::NoGradGuard no_grad;
        model(torch::ones({5, 6}));
      }
    }
    if (step < kSteps) {
      optimizer.zero_grad();
      model(torch::ones({8, 6})).square().mean().backward();
      optimizer.step();
    }
  }
}

} // namespace dtensor::test
