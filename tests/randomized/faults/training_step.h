// SPDX-License-Identifier: BSD-3-Clause
// A training step of a small model with tensor and sequence parallelism, which
// reports its progress.
#pragma once

#include <dtensor/layout/mesh.h>
#include <torch/torch.h>

#include <functional>

namespace dtensor::faults {

/// Callback at each point of the step: at calls of the program between
/// operators, in hooks of the backward pass, and before every collective.
using At = std::function<void()>;

struct BlockImpl : torch::nn::Module {
  BlockImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
  torch::nn::Linear head;
};
TORCH_MODULE(Block);

/// Returns this rank's model, parallel over `mesh`.
Block make_model(const DeviceMesh& mesh);

/// Runs forward, backward and optimizer of two steps. The second step uses
/// cached decisions and plans.
void train(Block model, const DeviceMesh& mesh, const At& at);

} // namespace dtensor::faults
