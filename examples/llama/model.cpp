// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

namespace llama {
namespace {

using torch::Tensor;

torch::nn::Linear linear(int64_t from, int64_t to) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
}

// (B, T, heads * D) -> (B, heads, T, D)
Tensor heads_of(const Tensor& x, int64_t head_size) {
  return x.unflatten(-1, {x.size(-1) / head_size, head_size}).transpose(1, 2);
}

// Pairs of features are those that are half a head apart.
Tensor rotated(const Tensor& x, const Positions& at) {
  const auto halves = x.chunk(2, -1);
  return x * at.cos + torch::cat({-halves[1], halves[0]}, -1) * at.sin;
}

// Behind the `past` tokens of `cache`, which has room for `context`; returns
// all of them.
Tensor
remember(Tensor& cache, const Tensor& now, int64_t past, int64_t context) {
  if (!cache.defined()) {
    cache = now.new_empty({now.size(0), now.size(1), context, now.size(3)});
  }
  cache.narrow(2, past, now.size(2)).copy_(now);
  return cache.narrow(2, 0, past + now.size(2));
}

} // namespace

RMSNormImpl::RMSNormImpl(int64_t width, double eps)
    : epsilon(eps),
      weight(register_parameter("weight", torch::ones({width}))) {}

Tensor RMSNormImpl::forward(const Tensor& x) {
  return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
}

AttentionImpl::AttentionImpl(const Config& c)
    : head_size(c.head_size()),
      context(c.context),
      q_proj(register_module("q_proj", linear(c.width, c.width))),
      k_proj(register_module(
          "k_proj",
          linear(c.width, c.key_heads * c.head_size()))),
      v_proj(register_module(
          "v_proj",
          linear(c.width, c.key_heads * c.head_size()))),
      o_proj(register_module("o_proj", linear(c.width, c.width))) {}

Tensor
AttentionImpl::forward(const Tensor& x, const Positions& at, Cache& cache) {
  const auto q = rotated(heads_of(q_proj(x), head_size), at);
  const auto k = remember(
      cache.keys,
      rotated(heads_of(k_proj(x), head_size), at),
      at.past,
      context);
  const auto v =
      remember(cache.values, heads_of(v_proj(x), head_size), at.past, context);
  const auto may = at.may.defined() ? std::optional(at.may) : std::nullopt;
  const auto y = at::scaled_dot_product_attention(
      q, k, v, may, 0, at.is_causal, std::nullopt, /*enable_gqa=*/true);
  return o_proj(y.transpose(1, 2).flatten(2));
}

MLPImpl::MLPImpl(const Config& c)
    : gate_proj(register_module("gate_proj", linear(c.width, c.hidden))),
      up_proj(register_module("up_proj", linear(c.width, c.hidden))),
      down_proj(register_module("down_proj", linear(c.hidden, c.width))) {}

Tensor MLPImpl::forward(const Tensor& x) {
  return down_proj(torch::silu(gate_proj(x)) * up_proj(x));
}

LayerImpl::LayerImpl(const Config& c)
    : self_attn(register_module("self_attn", Attention(c))),
      mlp(register_module("mlp", MLP(c))),
      input_layernorm(
          register_module("input_layernorm", RMSNorm(c.width, c.epsilon))),
      post_attention_layernorm(register_module(
          "post_attention_layernorm",
          RMSNorm(c.width, c.epsilon))) {}

Tensor LayerImpl::forward(Tensor x, const Positions& at, Cache& cache) {
  x = x + self_attn(input_layernorm(x), at, cache);
  return x + mlp(post_attention_layernorm(x));
}

BodyImpl::BodyImpl(const Config& c)
    : embed_tokens(register_module(
          "embed_tokens",
          torch::nn::Embedding(c.vocabulary, c.width))),
      layers(register_module("layers", torch::nn::ModuleList())),
      norm(register_module("norm", RMSNorm(c.width, c.epsilon))) {
  for (int64_t i = 0; i < c.layers; ++i) {
    layers->push_back(Layer(c));
  }
}

Tensor BodyImpl::forward(
    const Tensor& ids,
    const Positions& at,
    std::vector<Cache>& caches) {
  auto x = embed_tokens(ids);
  for (size_t i = 0; i < layers->size(); ++i) {
    x = layers[i]->as<Layer>()->forward(x, at, caches[i]);
  }
  return norm(x.select(1, -1)); // of the last token alone
}

LlamaImpl::LlamaImpl(const Config& c)
    : model(register_module("model", Body(c))),
      lm_head(register_module("lm_head", linear(c.width, c.vocabulary))) {
  const auto half = torch::arange(0, c.head_size(), 2, torch::kDouble);
  const auto angles = torch::outer(
      torch::arange(c.context, torch::kDouble),
      torch::pow(c.rope_base, -half / c.head_size()));
  const auto both = torch::cat({angles, angles}, -1);
  to(c.dtype);
  cos_ = register_buffer("rope_cos", both.cos().to(c.dtype));
  sin_ = register_buffer("rope_sin", both.sin().to(c.dtype));
}

Positions LlamaImpl::positions(
    int64_t length,
    const Tensor& padding,
    int64_t past) const {
  const auto now = torch::arange(past, past + length);
  const auto places = (now - padding.unsqueeze(1)).clamp_min(0); // (B, T)
  Positions at{
      past,
      cos_.index({places}).unsqueeze(1),
      sin_.index({places}).unsqueeze(1),
      {},
      past == 0 && length > 1};
  if (padding.any().item<bool>() || (past > 0 && length > 1)) {
    const auto keys = torch::arange(past + length);
    const auto before = keys <= now.unsqueeze(1); // (T, past + T)
    const auto same = keys == now.unsqueeze(1);   // padding sees itself
    at.may = before.logical_and(keys >= padding.view({-1, 1, 1, 1}))
                 .logical_or(same);
    at.is_causal = false;
  }
  return at;
}

Tensor
LlamaImpl::forward(const Tensor& ids, const Tensor& padding, State& state) {
  state.caches.resize(model->layers->size());
  const auto at = positions(ids.size(1), padding, state.past);
  state.past += ids.size(1);
  return lm_head(model->forward(ids, at, state.caches));
}

} // namespace llama
