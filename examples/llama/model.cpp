// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

namespace llama {
namespace {

using torch::Tensor;

torch::nn::Linear linear(int64_t from, int64_t to) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
}

} // namespace

RMSNormImpl::RMSNormImpl(const Config& c)
    : epsilon(c.epsilon),
      weight(register_parameter("weight", torch::ones({c.width}))) {}

Tensor RMSNormImpl::forward(const Tensor& x) {
  return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
}

AttentionImpl::AttentionImpl(const Config& c) : head_size(c.head_size()) {
  const auto keys = c.key_heads * head_size;
  q_proj = register_module("q_proj", linear(c.width, c.width));
  k_proj = register_module("k_proj", linear(c.width, keys));
  v_proj = register_module("v_proj", linear(c.width, keys));
  o_proj = register_module("o_proj", linear(c.width, c.width));
}

Tensor
AttentionImpl::forward(const Tensor& x, const Positions& at, Cache& cache) {
  const auto heads = [&](torch::nn::Linear& of) { // (B, heads, T, D)
    const auto y = of(x); // the number of heads follows from the features
    return y.unflatten(-1, {y.size(-1) / head_size, head_size}).transpose(1, 2);
  };
  const auto q = rotated(heads(q_proj), at);
  const auto k = remember(cache.keys, rotated(heads(k_proj), at), at);
  const auto v = remember(cache.values, heads(v_proj), at);
  const auto y = at::scaled_dot_product_attention(
      q, k, v, at.may, 0, at.is_causal, std::nullopt, /*enable_gqa=*/true);
  return o_proj(y.transpose(1, 2).flatten(2));
}

MLPImpl::MLPImpl(const Config& c) {
  gate_proj = register_module("gate_proj", linear(c.width, c.hidden));
  up_proj = register_module("up_proj", linear(c.width, c.hidden));
  down_proj = register_module("down_proj", linear(c.hidden, c.width));
}

Tensor MLPImpl::forward(const Tensor& x) {
  return down_proj(torch::silu(gate_proj(x)) * up_proj(x));
}

LayerImpl::LayerImpl(const Config& c) {
  self_attn = register_module("self_attn", Attention(c));
  mlp = register_module("mlp", MLP(c));
  input_layernorm = register_module("input_layernorm", RMSNorm(c));
  post_attention_layernorm =
      register_module("post_attention_layernorm", RMSNorm(c));
}

Tensor LayerImpl::forward(Tensor x, const Positions& at, Cache& cache) {
  x = x + self_attn(input_layernorm(x), at, cache);
  return x + mlp(post_attention_layernorm(x));
}

BodyImpl::BodyImpl(const Config& c) {
  embed_tokens = register_module(
      "embed_tokens", torch::nn::Embedding(c.vocabulary, c.width));
  layers = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < c.layers; ++i) {
    layers->push_back(Layer(c));
  }
  norm = register_module("norm", RMSNorm(c));
}

Tensor BodyImpl::forward(
    const Tensor& ids,
    const Positions& at,
    std::vector<Cache>& caches) {
  auto x = embed_tokens(ids);
  for (size_t i = 0; i < layers->size(); ++i) {
    x = layers[i]->as<Layer>()->forward(x, at, caches[i]);
  }
  return norm(x.select(1, -1)); // only the last token
}

LlamaImpl::LlamaImpl(const Config& c) {
  model = register_module("model", Body(c));
  lm_head = register_module("lm_head", linear(c.width, c.vocabulary));
  rope = register_module("rope", Rope(c));
  to(c.dtype);
}

Tensor
LlamaImpl::forward(const Tensor& ids, const Tensor& padding, State& state) {
  state.caches.resize(model->layers->size());
  const auto at = rope(ids.size(1), padding, state.past);
  state.past += ids.size(1);
  return lm_head(model->forward(ids, at, state.caches));
}

} // namespace llama
