// SPDX-License-Identifier: BSD-3-Clause
// A training step of a small model, parallel in tensor and sequence, that tells
// where it is.
#pragma once

#include <dtensor/layout/mesh.h>
#include <torch/torch.h>

#include <functional>

namespace dtensor::faults {

/// Called at each point of the step: in turn the calls of the program between
/// operators, those in hooks of backward, and every collective before it is
/// entered.
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

/// The model of this rank, parallel over `mesh`.
Block make_model(const DeviceMesh& mesh);

/// Forward, backward and optimizer of two steps. The second finds decisions and
/// plans made.
void train(Block model, const DeviceMesh& mesh, const At& at);

} // namespace dtensor::faults
