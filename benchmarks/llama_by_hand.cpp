// SPDX-License-Identifier: BSD-3-Clause
#include "llama_by_hand.h"

namespace bench {
namespace {

using torch::Tensor;

// Returns this rank's chunk, as torch.chunk splits the tensor.
Tensor piece(const Tensor& whole, int64_t dim, const dtensor::Group& group) {
  const auto pieces = whole.chunk(group.size(), dim);
  return pieces[static_cast<size_t>(group.rank())].clone();
}

void replace(torch::nn::Linear& linear, const Tensor& weight) {
  linear->weight.set_data(weight);
}

} // namespace

LlamaByHand::LlamaByHand(
    llama::Llama model,
    const llama::Config& config,
    dtensor::Group& group)
    : model_(std::move(model)),
      group_(&group) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : *model_->model->layers) {
    auto& layer = *module->as<llama::Layer>();
    cut_attention(*layer.self_attn, config);
    auto& mlp = *layer.mlp;
    replace(mlp.gate_proj, piece(mlp.gate_proj->weight, 0, group));
    replace(mlp.up_proj, piece(mlp.up_proj->weight, 0, group));
    replace(mlp.down_proj, piece(mlp.down_proj->weight, 1, group));
  }
  replace(model_->lm_head, piece(model_->lm_head->weight, 0, group));
}

void LlamaByHand::cut_attention(
    llama::AttentionImpl& attention,
    const llama::Config& config) {
  const auto heads = [&](const Tensor& rows, int64_t of_each) {
    const auto whole = rows.unflatten(0, {-1, config.head_size()});
    return piece(whole.repeat_interleave(of_each, 0), 0, *group_).flatten(0, 1);
  };
  const auto shared = config.heads / config.key_heads;
  replace(attention.q_proj, heads(attention.q_proj->weight, 1));
  replace(attention.k_proj, heads(attention.k_proj->weight, shared));
  replace(attention.v_proj, heads(attention.v_proj->weight, shared));
  const auto columns = heads(attention.o_proj->weight.t(), 1).t();
  replace(attention.o_proj, columns.contiguous());
}

Tensor LlamaByHand::sum(const Tensor& part) const {
  return group_->all_reduce(part, dtensor::ReduceOp::kSum);
}

Tensor LlamaByHand::next_tokens(
    const Tensor& ids,
    const Tensor& padding,
    llama::State& state) {
  auto& body = *model_->model;
  state.caches.resize(body.layers->size());
  const auto at = model_->rope(ids.size(1), padding, state.past);
  state.past += ids.size(1);
  auto x = body.embed_tokens(ids);
  for (size_t i = 0; i < body.layers->size(); ++i) {
    auto& layer = *body.layers[i]->as<llama::Layer>();
    x = x + sum(layer.self_attn(layer.input_layernorm(x), at, state.caches[i]));
    x = x + sum(layer.mlp(layer.post_attention_layernorm(x)));
  }
  const auto logits = model_->lm_head(body.norm(x.select(1, -1)));
  return group_->all_gather(logits, 1).argmax(-1);
}

} // namespace bench
