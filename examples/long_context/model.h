// SPDX-License-Identifier: BSD-3-Clause
// A small decoder, written for one device. No code here depends on ranks.
#pragma once

#include <torch/torch.h>

/// A layer: causal attention with grouped queries, then two linears.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t width, int64_t heads, int64_t key_heads)
      : head(width / heads) {
    norm = register_module("norm", torch::nn::LayerNorm(options(width)));
    q = register_module("q", torch::nn::Linear(width, width));
    k = register_module("k", torch::nn::Linear(width, key_heads * head));
    v = register_module("v", torch::nn::Linear(width, key_heads * head));
    o = register_module("o", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(options(width)));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }

  // x (B, T, C)
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x + attention(norm(x));
    return y + down(torch::gelu(up(norm2(y))));
  }

  torch::Tensor attention(const torch::Tensor& x) {
    const auto out = torch::scaled_dot_product_attention(
        in_heads(q(x)),
        in_heads(k(x)),
        in_heads(v(x)),
        /*attn_mask=*/{},
        /*dropout_p=*/0,
        /*is_causal=*/true,
        /*scale=*/{},
        /*enable_gqa=*/true);
    return o(out.transpose(1, 2).flatten(-2));
  }

  // (B, T, H * D) to (B, H, T, D)
  torch::Tensor in_heads(const torch::Tensor& t) const {
    return t.unflatten(-1, {-1, head}).transpose(1, 2);
  }

  static torch::nn::LayerNormOptions options(int64_t width) {
    return torch::nn::LayerNormOptions({width});
  }

  int64_t head;
  torch::nn::LayerNorm norm{nullptr}, norm2{nullptr};
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Layer);

/// Predicts the next token at each position.
struct DecoderImpl : torch::nn::Module {
  DecoderImpl(int64_t vocabulary, int64_t length) {
    constexpr int64_t kWidth = 64;
    tokens =
        register_module("tokens", torch::nn::Embedding(vocabulary, kWidth));
    places = register_module("places", torch::nn::Embedding(length, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      layers->push_back(Layer(kWidth, /*heads=*/4, /*key_heads=*/2));
    }
    head = register_module("head", torch::nn::Linear(kWidth, vocabulary));
  }

  // ids (B, T) and the position (T) of each; logits (B, T, vocabulary)
  torch::Tensor forward(
      const torch::Tensor& ids,
      const torch::Tensor& positions) {
    auto x = tokens(ids) + places(positions);
    for (const auto& layer : *layers) {
      x = layer->as<Layer>()->forward(x);
    }
    return head(x);
  }

  torch::nn::Embedding tokens{nullptr}, places{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Decoder);
