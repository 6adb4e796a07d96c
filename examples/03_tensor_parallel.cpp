// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallelism for an unmodified torch::nn model. A plan says how each
// module is sharded; the model's code and the optimizer do not change.
#include "check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

struct MLPImpl : torch::nn::Module {
  MLPImpl()
      : w1(register_module("w1", torch::nn::Linear(16, 64))),
        w2(register_module("w2", torch::nn::Linear(64, 16))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return w2(torch::gelu(w1(x)));
  }
  torch::nn::Linear w1, w2;
};
TORCH_MODULE(MLP);

// Runs five steps towards a fixed target. `mesh` is undefined for one device.
std::vector<double> train(const DeviceMesh& mesh) {
  torch::manual_seed(0); // every rank starts from the same model
  MLP model;
  model->to(torch::kDouble);
  if (mesh.defined()) {
    parallelize_module(
        *model,
        mesh,
        {
            {"w1", ColwiseParallel()}, // (64, 16) S(0)
            {"w2", RowwiseParallel()}, // (16, 64) S(1)
        });
  }
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  const auto x = torch::randn({8, 16}, torch::kDouble);
  const auto y = torch::randn({8, 16}, torch::kDouble);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(x), y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

int main() {
  const auto alone = train(DeviceMesh());
  run_world(2, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    const auto together = train(mesh);
    for (size_t i = 0; i < alone.size(); ++i) {
      CHECK_THAT(std::abs(alone[i] - together[i]) < 1e-12);
      if (get_rank() == 0) {
        std::cout << "step " << i << ": " << alone[i] << " alone, "
                  << together[i] << " on " << get_world_size() << " ranks\n";
      }
    }
  });
}
