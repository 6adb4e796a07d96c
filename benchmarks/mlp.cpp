// SPDX-License-Identifier: BSD-3-Clause
// A two-layer MLP, columns then rows, small enough that only overhead counts;
// against the plain MLP of the whole size. No communication.
#include "harness.h"

#include <dtensor/dtensor.h>
#include <dtensor/testing/fake_world.h>
#include <torch/torch.h>

namespace {

constexpr int64_t kSide = 8;

struct MLPImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return w2(torch::relu(w1(x)));
  }

  torch::nn::Linear w1 =
      register_module("w1", torch::nn::Linear(kSide, 2 * kSide));
  torch::nn::Linear w2 =
      register_module("w2", torch::nn::Linear(2 * kSide, kSide));
};
TORCH_MODULE(MLP);

void train(MLP& mlp, const torch::Tensor& x) {
  mlp->zero_grad();
  mlp(x).sum().backward();
}

void run_world(int64_t world_size, const bench::Options& options) {
  MLP plain, parallel;
  dtensor::parallelize_module(
      *parallel,
      dtensor::init_device_mesh(torch::kCPU, {world_size}),
      {{"w1", dtensor::ColwiseParallel()}, {"w2", dtensor::RowwiseParallel()}});
  const auto x = torch::randn({kSide, kSide});
  const auto world = std::to_string(world_size);
  {
    const torch::NoGradGuard no_grad;
    bench::run_pair(
        "mlp/no_grad/" + world,
        [&] { parallel(x); },
        [&] { plain(x); },
        options);
  }
  bench::run_pair(
      "mlp/grad/" + world,
      [&] { train(parallel, x); },
      [&] { train(plain, x); },
      options);
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "A small MLP without communication");
  torch::set_num_threads(1);
  for (const int64_t world_size : {2, 8}) {
    dtensor::testing::with_fake_world(
        0, world_size, [&] { run_world(world_size, options); });
  }
}
