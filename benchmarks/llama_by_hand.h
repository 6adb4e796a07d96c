// SPDX-License-Identifier: BSD-3-Clause
// Hand-written tensor parallelism, for comparison: the plain modules of
// examples/llama with manually sharded weights and all-reduces between them.
#pragma once

#include <examples/llama/model.h>

#include <dtensor/comm/group.h>

namespace bench {

class LlamaByHand {
 public:
  /// Shards the weights of `model` in place. A rank holds complete heads, each
  /// with its own keys and values, and columns of the MLPs and of the output.
  LlamaByHand(
      llama::Llama model,
      const llama::Config& config,
      dtensor::Group& group);

  /// Returns the most probable token (B) after ids (B, T), on every rank.
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
