// SPDX-License-Identifier: BSD-3-Clause
#include "training_step.h"

#include <dtensor/dtensor.h>

namespace dtensor::faults {

BlockImpl::BlockImpl()
    : norm(register_module(
          "norm",
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
      up(register_module("up", torch::nn::Linear(8, 12))),
      down(register_module("down", torch::nn::Linear(12, 8))),
      head(register_module("head", torch::nn::Linear(8, 6))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const auto y = x + down(torch::gelu(up(norm(x))));
  return head(y);
}

Block make_model(const DeviceMesh& mesh) {
  Block model;
  const ColwiseParallel columns({.use_local_output = false});
  parallelize_module(
      *model,
      mesh,
      {{"norm", SequenceParallel()},
       {"up", columns},
       {"down",
        RowwiseParallel(
            {.output_layouts = Shard(1), .use_local_output = false})},
       {"head",
        ColwiseParallel(
            {.input_layouts = Shard(1), .use_local_output = false})}});
  return model;
}

void train(Block model, const DeviceMesh& mesh, const At& at) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto x = distribute_tensor(torch::ones({2, 6, 8}), mesh, {Shard(1)});
  const auto target = torch::zeros({12}, at::kLong);
  for (int step = 0; step < 2; ++step) {
    at();
    const auto logits = model(x);
    at();
    logits.register_hook([&](const at::Tensor&) { at(); });
    at::Tensor loss;
    {
      const auto cut_classes = loss_parallel();
      loss =
          torch::nn::functional::cross_entropy(logits.reshape({12, 6}), target);
      at();
      loss.backward();
    }
    at();
    optimizer.step();
    at();
    optimizer.zero_grad();
  }
  DTensor(model->norm->weight).full_tensor();
  get_group(mesh).barrier();
}

} // namespace dtensor::faults
