// SPDX-License-Identifier: BSD-3-Clause
// Finds the plan of a script, and parallelizes a module as in PyTorch 2.0.
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/contrib/torchscript/parallelize_script.h>
#include <dtensor/dtensor.h>
#include <torch/script.h>
#include <torch/torch.h>

using namespace dtensor;

int main() {
  torch::jit::Module script("__torch__.Mlp");
  script.register_parameter("up", torch::randn({24, 8}), false);
  script.define("def forward(self, x):\n    return torch.linear(x, self.up)\n");
  TORCH_CHECK(find_tp_plan(script).empty());
  run_ranks(2, [] {
    torch::nn::Sequential mlp(
        torch::nn::Linear(8, 24), torch::nn::Linear(24, 8));
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    torch_2_0::parallelize_module(*mlp, mesh, torch_2_0::PairwiseParallel());
    TORCH_CHECK(mlp->forward(torch::ones({2, 8})).size(1) == 8);
  });
}
