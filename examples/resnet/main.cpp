// SPDX-License-Identifier: BSD-3-Clause
// A ResNet of plain torch::nn modules, trained on one rank, and with its batch,
// its channels or its images sharded. All runs have the same losses.
//
//   resnet [steps]        20 steps
#include <examples/arguments.h>
#include <examples/losses.h>

#include <torch/torch.h>

using namespace dtensor;
namespace nn = torch::nn;

nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size)
                        .stride(stride)
                        .padding(size / 2)
                        .bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        norm1(register_module("norm1", nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        norm2(register_module("norm2", nn::BatchNorm2d(out))) {
    if (stride > 1 || in != out) {
      shortcut = register_module(
          "shortcut",
          nn::Sequential(
              convolution(in, out, 1, stride), nn::BatchNorm2d(out)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Sequential shortcut = nullptr;
};
TORCH_MODULE(Block);

struct ResNetImpl : nn::Module {
  ResNetImpl()
      : stem(register_module("stem", convolution(3, 6, 3, 1))),
        norm(register_module("norm", nn::BatchNorm2d(6))),
        block1(register_module("block1", Block(6, 6, 1))),
        block2(register_module("block2", Block(6, 10, 2))),
        head(register_module("head", nn::Linear(10, 5))) {}
  torch::Tensor forward(const torch::Tensor& pictures) {
    auto x = torch::relu(norm(stem(pictures))); // (samples, channels, h, w)
    x = torch::max_pool2d(x, 3, 2, 1);
    x = block2(block1(x));
    return head(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  nn::Conv2d stem;
  nn::BatchNorm2d norm;
  Block block1;
  Block block2;
  nn::Linear head;
};
TORCH_MODULE(ResNet);

// Pictures and their classes.
struct Batch {
  torch::Tensor pictures = torch::randn({8, 3, 18, 14}, torch::kDouble);
  torch::Tensor classes = torch::arange(8).remainder(5);
};

/// Distributes a model and its batch.
using Distribute = std::function<void(ResNet&, Batch&, const DeviceMesh&)>;

void shard(torch::Tensor& t, const DeviceMesh& mesh, const Placement& layout) {
  t = distribute_tensor(t, mesh, {layout});
}

void shard_batch(ResNet& model, Batch& batch, const DeviceMesh& mesh) {
  distribute_module(*model, mesh); // replicates parameters and buffers
  shard(batch.pictures, mesh, Shard(0));
  shard(batch.classes, mesh, Shard(0));
}

void shard_space(ResNet& model, Batch& batch, const DeviceMesh& mesh) {
  distribute_module(*model, mesh);
  shard(batch.pictures, mesh, Shard(2)); // (samples, channels, h, w) S(2)
  shard(batch.classes, mesh, Replicate());
}

// Shards the channels between the convolutions of each block.
void shard_channels(ResNet& model, Batch& batch, const DeviceMesh& mesh) {
  parallelize_module(
      *model,
      mesh,
      {{"block?.conv1", ColwiseParallel({.use_local_output = false})},
       {"block?.conv2", RowwiseParallel({.use_local_output = false})}});
  for (Block block : {model->block1, model->block2}) {
    auto& norm = *block->norm1;
    for (auto* t :
         {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var}) {
      distribute_parameter(*t, mesh, {Shard(0)});
    }
  }
  distribute_module(*model, mesh);
  shard(batch.pictures, mesh, Replicate());
  shard(batch.classes, mesh, Replicate());
}

std::vector<double>
train(int64_t ranks, int64_t steps, const Distribute& distribute) {
  torch::manual_seed(0);
  ResNet model;
  model->to(torch::kDouble);
  Batch batch;
  if (distribute) {
    distribute(model, batch, init_device_mesh(torch::kCPU, {ranks}, {"ranks"}));
  }
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  return losses::of_steps(*model, steps, optimizer, [&] {
    return torch::cross_entropy_loss(model(batch.pictures), batch.classes);
  });
}

int main(int argc, char** argv) {
  const std::string usage = "[steps, default 20]";
  arguments::check(argc, argv, 1, usage);
  const int64_t steps = arguments::positive(argc, argv, 1, 20, usage);
  const auto run = [&](int64_t ranks, const Distribute& distribute) {
    return losses::of_ranks(
        ranks, [&] { return train(ranks, steps, distribute); });
  };
  const auto alone = run(1, nullptr);
  losses::print(alone);
  const std::vector<std::pair<std::string, Distribute>> ways{
      {"batch", shard_batch},
      {"channels", shard_channels},
      {"space", shard_space}};
  for (const int64_t ranks : {2, 4}) {
    for (const auto& [name, distribute] : ways) {
      losses::compare(
          std::to_string(ranks) + " ranks, " + name + " sharded",
          run(ranks, distribute),
          alone);
    }
  }
}
