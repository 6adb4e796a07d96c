// SPDX-License-Identifier: BSD-3-Clause
// What a user writes who has no tensor parallelism: the plain modules of
// examples/llama with weights cut by hand, and the sums over ranks between
// them.
#pragma once

#include <examples/llama/model.h>

#include <dtensor/comm/group.h>

namespace bench {

class LlamaByHand {
 public:
  /// Cuts the weights of `model`, which then holds this rank's part: whole
  /// heads, each with its own keys and values, and columns of the MLPs and of
  /// the output.
  LlamaByHand(
      llama::Llama model,
      const llama::Config& config,
      dtensor::Group& group);

  /// The most probable token (B) behind ids (B, T), on every rank.
  torch::Tensor next_tokens(
      const torch::Tensor& ids,
      const torch::Tensor& padding,
      llama::State& state);

 private:
  void cut_attention(
      llama::AttentionImpl& attention,
      const llama::Config& config);
  torch::Tensor sum(const torch::Tensor& part) const;

  llama::Llama model_;
  dtensor::Group* group_;
};

} // namespace bench
