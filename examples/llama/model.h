// SPDX-License-Identifier: BSD-3-Clause
// Llama, of plain torch::nn modules with the names of the Python package
// transformers, written for one device. Nothing here knows of ranks but that a
// module has as many heads as its projections give it; plan.h spreads it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace llama {

struct Config {
  int64_t vocabulary = 256;
  int64_t layers = 2;
  int64_t width = 72;
  int64_t hidden = 96;
  int64_t heads = 9;
  int64_t key_heads = 3;
  int64_t context = 256; // longest sequence
  double rope_base = 10000;
  double epsilon = 1e-5;
  torch::Dtype dtype = torch::kFloat;

  int64_t head_size() const {
    return width / heads;
  }
};

/// Keys and values of the tokens so far, of one layer: (B, heads, T, D).
struct Cache {
  torch::Tensor keys, values;
};

/// What has been read so far.
struct State {
  std::vector<Cache> caches; // of each layer
  int64_t past = 0;          // tokens
};

/// Where the tokens of a pass are. Rows of a batch end together: a shorter one
/// begins with padding, which nobody looks at.
struct Positions {
  int64_t past;      // tokens before
  torch::Tensor cos; // (B, 1, T, D)
  torch::Tensor sin; // (B, 1, T, D)
  torch::Tensor may; // (B, 1, T, past + T), or undefined: all of them
  bool is_causal;    // instead of `may`
};

struct RMSNormImpl : torch::nn::Module {
  RMSNormImpl(int64_t width, double epsilon);
  torch::Tensor forward(const torch::Tensor& x);

  double epsilon;
  torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Config& config);
  torch::Tensor
  forward(const torch::Tensor& x, const Positions& at, Cache& cache);

  int64_t head_size, context;
  torch::nn::Linear q_proj, k_proj, v_proj, o_proj;
};
TORCH_MODULE(Attention);

struct MLPImpl : torch::nn::Module {
  explicit MLPImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Linear gate_proj, up_proj, down_proj;
};
TORCH_MODULE(MLP);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Config& config);
  torch::Tensor forward(torch::Tensor x, const Positions& at, Cache& cache);

  Attention self_attn;
  MLP mlp;
  RMSNorm input_layernorm, post_attention_layernorm;
};
TORCH_MODULE(Layer);

struct BodyImpl : torch::nn::Module {
  explicit BodyImpl(const Config& config);
  torch::Tensor forward(
      const torch::Tensor& ids,
      const Positions& at,
      std::vector<Cache>& caches);

  torch::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  RMSNorm norm;
};
TORCH_MODULE(Body);

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const Config& config);

  /// The logits (B, V) of what follows ids (B, T), which stand behind what
  /// was read so far. `padding` (B) counts what the rows begin with.
  torch::Tensor
  forward(const torch::Tensor& ids, const torch::Tensor& padding, State& state);

  Body model;
  torch::nn::Linear lm_head;

 private:
  Positions
  positions(int64_t length, const torch::Tensor& padding, int64_t past) const;
  torch::Tensor cos_, sin_; // (context, D)
};
TORCH_MODULE(Llama);

} // namespace llama
