// SPDX-License-Identifier: BSD-3-Clause
// Llama made of plain torch::nn modules with the names of the Python package
// transformers, written for one device. A module derives its number of heads
// from the features of its projections. No other code here depends on ranks.
// plan.h shards the model.
#pragma once

#include "config.h"
#include "positions.h"

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace llama {

struct RMSNormImpl : torch::nn::Module {
  explicit RMSNormImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x);

  double epsilon;
  torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Config& config);
  torch::Tensor
  forward(const torch::Tensor& x, const Positions& at, Cache& cache);

  int64_t head_size;
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr},
      o_proj{nullptr};
};
TORCH_MODULE(Attention);

struct MLPImpl : torch::nn::Module {
  explicit MLPImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(MLP);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Config& config);
  torch::Tensor forward(torch::Tensor x, const Positions& at, Cache& cache);

  Attention self_attn{nullptr};
  MLP mlp{nullptr};
  RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
};
TORCH_MODULE(Layer);

struct BodyImpl : torch::nn::Module {
  explicit BodyImpl(const Config& config);
  torch::Tensor forward(
      const torch::Tensor& ids,
      const Positions& at,
      std::vector<Cache>& caches);

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};
  RMSNorm norm{nullptr};
};
TORCH_MODULE(Body);

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const Config& config);

  /// Returns the logits (B, V) for the token after ids (B, T), which follow the
  /// tokens in `state`. `padding` (B) is the number of padding tokens at the
  /// start of each row.
  torch::Tensor
  forward(const torch::Tensor& ids, const torch::Tensor& padding, State& state);

  Body model{nullptr};
  torch::nn::Linear lm_head{nullptr};
  Rope rope{nullptr};
};
TORCH_MODULE(Llama);

} // namespace llama
