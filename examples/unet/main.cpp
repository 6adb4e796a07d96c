// SPDX-License-Identifier: BSD-3-Clause
// A UNet of plain torch::nn modules that removes noise from images, trained on
// one rank, and with images that are sharded along height and width. All runs
// have the same losses.
//
//   unet [steps]          20 steps
#include <examples/arguments.h>
#include <examples/losses.h>

#include <torch/torch.h>

using namespace dtensor;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t out)
      : conv(register_module(
            "conv",
            nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(out))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(norm(conv(x)));
  }
  nn::Conv2d conv;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(Block);

// Halves the image twice. A transposed convolution and an interpolation double
// it again, and each result is combined with the earlier image of its size.
struct UNetImpl : nn::Module {
  UNetImpl()
      : first(register_module("first", Block(3, 6))),
        second(register_module("second", Block(6, 8))),
        bottom(register_module("bottom", Block(8, 8))),
        up(register_module(
            "up",
            nn::ConvTranspose2d(
                nn::ConvTranspose2dOptions(8, 8, 2).stride(2)))),
        third(register_module("third", Block(16, 6))),
        fourth(register_module("fourth", Block(12, 6))),
        last(register_module(
            "last",
            nn::Conv2d(nn::Conv2dOptions(6, 3, 3).padding(1).padding_mode(
                torch::kReflect)))) {}
  torch::Tensor forward(const torch::Tensor& pictures) {
    const auto whole = first(pictures); // (samples, channels, h, w)
    const auto half = second(torch::max_pool2d(whole, 2));
    const auto quarter = bottom(torch::max_pool2d(half, 2));
    auto x = third(torch::cat({up(quarter), half}, 1));
    x = nn::functional::interpolate(
        x,
        nn::functional::InterpolateFuncOptions()
            .scale_factor(std::vector<double>{2, 2})
            .mode(torch::kBilinear)
            .align_corners(false));
    return last(fourth(torch::cat({x, whole}, 1)));
  }
  Block first;
  Block second;
  Block bottom;
  nn::ConvTranspose2d up;
  Block third;
  Block fourth;
  nn::Conv2d last;
};
TORCH_MODULE(UNet);

// Trains with pictures in layout `layout`; without a mesh, on plain tensors.
std::vector<double>
train(int64_t steps, const DeviceMesh& mesh, const Placements& layout) {
  torch::manual_seed(0);
  UNet model;
  model->to(torch::kDouble);
  auto clean = torch::rand({4, 3, 20, 16}, torch::kDouble);
  auto noisy = clean + 0.3 * torch::randn_like(clean);
  if (mesh.defined()) {
    distribute_module(*model, mesh); // replicates parameters and buffers
    clean = distribute_tensor(clean, mesh, layout);
    noisy = distribute_tensor(noisy, mesh, layout);
  }
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  return losses::of_steps(*model, steps, optimizer, [&] {
    return torch::mse_loss(model(noisy), clean);
  });
}

int main(int argc, char** argv) {
  const std::string usage = "[steps, default 20]";
  arguments::check(argc, argv, 1, usage);
  const int64_t steps = arguments::positive(argc, argv, 1, 20, usage);
  const auto alone = losses::of_ranks(1, [&] { return train(steps, {}, {}); });
  losses::print(alone);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 1}, {1, 2}, {2, 2}}) {
    const auto ranks = shape[0] * shape[1];
    const auto together = losses::of_ranks(ranks, [&] {
      return train(
          steps,
          init_device_mesh(torch::kCPU, shape, {"height", "width"}),
          {Shard(2), Shard(3)});
    });
    losses::compare(
        std::to_string(shape[0]) + " x " + std::to_string(shape[1]) + " ranks",
        together,
        alone);
  }
}
