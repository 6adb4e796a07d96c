// SPDX-License-Identifier: BSD-3-Clause
// Names of this library do not collide with names that LibTorch programs use.
// The main purpose of this test is to compile.
#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

using namespace dtensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
namespace optim = torch::optim;

namespace TEST_SOURCE {

struct NetImpl : nn::Module {
  NetImpl() : linear(register_module("linear", nn::Linear(4, 4))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return dropout(F::relu(linear(x)));
  }
  nn::Linear linear;
  hooked::Dropout dropout{0.0};
};
TORCH_MODULE(Net);

TEST(NamesTest, LibraryNamesCoexistWithNamesOfPrograms) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    Net net;
    parallelize_module(
        *net,
        mesh,
        {{"linear", ColwiseParallel({.output_layouts = Replicate()})}});
    optim::SGD sgd(net->parameters(), 0.1);
    net(torch::ones({2, 4})).sum().backward();
    sgd.step();
    const auto& gradient = net->linear->weight.grad();
    EXPECT_EQ(DTensor(gradient).placements()[0], Shard(0));
  });
}

} // namespace TEST_SOURCE
