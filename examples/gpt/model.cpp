// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

namespace gpt {
namespace nn = torch::nn;

AttentionImpl::AttentionImpl(const Config& config)
    : heads(config.heads),
      wq(register_module("wq", nn::Linear(config.width, config.width))),
      wk(register_module("wk", nn::Linear(config.width, config.width))),
      wv(register_module("wv", nn::Linear(config.width, config.width))),
      wo(register_module("wo", nn::Linear(config.width, config.width))),
      dropout(register_module("dropout", nn::Dropout(config.dropout))) {}

torch::Tensor AttentionImpl::forward(torch::Tensor x) {
  const auto b = x.size(0), t = x.size(1), c = x.size(2);
  const auto per_head = [&](const torch::Tensor& y) {
    return y.view({b, t, heads, c / heads}).transpose(1, 2); // (B, H, T, D)
  };
  const auto y = torch::scaled_dot_product_attention(
      per_head(wq(x)),
      per_head(wk(x)),
      per_head(wv(x)),
      /*attn_mask=*/{},
      /*dropout_p=*/0.0,
      /*is_causal=*/true);
  return dropout(wo(y.transpose(1, 2).reshape({b, t, c})));
}

MLPImpl::MLPImpl(const Config& config)
    : w1(register_module("w1", nn::Linear(config.width, 4 * config.width))),
      w2(register_module("w2", nn::Linear(4 * config.width, config.width))),
      dropout(register_module("dropout", nn::Dropout(config.dropout))) {}

torch::Tensor MLPImpl::forward(torch::Tensor x) {
  return dropout(w2(torch::gelu(w1(x))));
}

BlockImpl::BlockImpl(const Config& config)
    : ln1(register_module(
          "ln1",
          nn::LayerNorm(nn::LayerNormOptions({config.width})))),
      ln2(register_module(
          "ln2",
          nn::LayerNorm(nn::LayerNormOptions({config.width})))),
      attn(register_module("attn", Attention(config))),
      mlp(register_module("mlp", MLP(config))) {}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  x = x + attn(ln1(x));
  return x + mlp(ln2(x));
}

GPTImpl::GPTImpl(const Config& config)
    : wte(register_module("wte", nn::Embedding(config.vocab, config.width))),
      wpe(register_module("wpe", nn::Embedding(config.block, config.width))),
      dropout(register_module("dropout", nn::Dropout(config.dropout))),
      blocks(register_module("blocks", nn::ModuleList())),
      lnf(register_module(
          "lnf",
          nn::LayerNorm(nn::LayerNormOptions({config.width})))),
      head(register_module(
          "head",
          nn::Linear(
              nn::LinearOptions(config.width, config.vocab).bias(false)))) {
  for (int64_t i = 0; i < config.layers; ++i) {
    blocks->push_back(Block(config));
  }
  for (const auto& item : named_parameters()) {
    if (item.value().dim() == 2) {
      nn::init::normal_(item.value(), 0.0, 0.02);
    }
  }
}

torch::Tensor GPTImpl::forward(torch::Tensor ids) {
  const auto positions = torch::arange(ids.size(1), ids.options());
  auto x = dropout(wte(ids) + wpe(positions)); // (B, T, C)
  for (const auto& block : *blocks) {
    x = block->as<Block>()->forward(x);
  }
  return head(lnf(x));
}

torch::Tensor loss_of(
    const torch::Tensor& logits,
    const torch::Tensor& targets) {
  return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

} // namespace gpt
