// SPDX-License-Identifier: BSD-3-Clause
// A GPT of plain torch::nn modules, written for one device: head counts, shapes
// and dropout are those of the full model. No code in this file depends on
// ranks; plan.h shards the model.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace gpt {

struct Config {
  int64_t vocab = 128;
  int64_t block = 64; // maximum sequence length
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;
  double dropout = 0.1;
};

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Config& config);
  torch::Tensor forward(torch::Tensor x); // (B, T, C) -> (B, T, C)

  int64_t heads;
  torch::nn::Linear wq, wk, wv, wo;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Attention);

struct MLPImpl : torch::nn::Module {
  explicit MLPImpl(const Config& config);
  torch::Tensor forward(torch::Tensor x); // (B, T, C) -> (B, T, C)

  torch::nn::Linear w1, w2;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(MLP);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Config& config);
  torch::Tensor forward(torch::Tensor x); // (B, T, C) -> (B, T, C)

  torch::nn::LayerNorm ln1, ln2;
  Attention attn;
  MLP mlp;
};
TORCH_MODULE(Block);

struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const Config& config);
  torch::Tensor forward(torch::Tensor ids); // (B, T) -> logits (B, T, V)

  torch::nn::Embedding wte, wpe;
  torch::nn::Dropout dropout;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm lnf;
  torch::nn::Linear head;
};
TORCH_MODULE(GPT);

/// Returns the mean cross entropy of logits (B, T, V) for targets (B, T).
torch::Tensor loss_of(
    const torch::Tensor& logits,
    const torch::Tensor& targets);

} // namespace gpt
