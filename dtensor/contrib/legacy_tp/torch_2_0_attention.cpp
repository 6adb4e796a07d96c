// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/legacy_tp/torch_2_0_attention.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <dtensor/error.h>
#include <dtensor/tensor/is_dtensor.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>

#include <algorithm>

namespace dtensor::torch_2_0 {
namespace {

// Reorders rows of torch::nn::MultiheadAttention. Its rows are ordered by q, k
// and v, then by head. The result is ordered by head, then by q, k and v.
at::Tensor heads_first(const at::Tensor& rows, int64_t heads) {
  auto sizes = rows.sizes().vec();
  sizes[0] /= 3 * heads;
  sizes.insert(sizes.begin(), {3, heads});
  return rows.reshape(sizes).transpose(0, 1).reshape(rows.sizes());
}

void fill(
    torch::nn::Linear& linear,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  linear->weight.copy_(weight);
  if (bias.defined()) {
    linear->bias.copy_(bias);
  }
}

bool is_parallel(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return std::ranges::any_of(parameters, is_dtensor);
}

} // namespace

TensorParallelMultiheadAttentionImpl::TensorParallelMultiheadAttentionImpl(
    int64_t embed_dim,
    int64_t num_heads,
    const AttentionOptions& options)
    : embed_dim_(embed_dim),
      num_heads_(num_heads),
      options_(options) {
  DTENSOR_CHECK_VALUE(
      num_heads > 0 && embed_dim > 0 && embed_dim % num_heads == 0,
      "[TensorParallelMultiheadAttention] embed_dim {} is not divisible by "
      "num_heads {}. Pass an embed_dim that is a multiple of num_heads.",
      embed_dim,
      num_heads);
  DTENSOR_CHECK_VALUE(
      options.tp_size > 0,
      "[TensorParallelMultiheadAttention] tp_size must be positive, got {}. "
      "Leave it out: the mesh determines the number of ranks.",
      options.tp_size);
  reset();
}

torch::nn::Linear TensorParallelMultiheadAttentionImpl::make(
    const char* name,
    int64_t out_features,
    bool bias) {
  torch::nn::Linear linear(
      torch::nn::LinearOptions(embed_dim_, out_features).bias(bias));
  if (bias) {
    torch::nn::init::zeros_(linear->bias);
  }
  return named_children().contains(name) ? replace_module(name, linear)
                                         : register_module(name, linear);
}

void TensorParallelMultiheadAttentionImpl::reset() {
  const bool bias = options_.add_bias_kv;
  if (options_.self_attention) {
    qkv = make("qkv", 3 * embed_dim_, bias);
  } else {
    query = make("query", embed_dim_, bias);
    key = make("key", embed_dim_, bias);
    value = make("value", embed_dim_, bias);
  }
  for (auto& linear : projections()) {
    torch::nn::init::xavier_uniform_(linear->weight);
  }
  proj = make("proj", embed_dim_, options_.bias);
}

std::vector<torch::nn::Linear>
TensorParallelMultiheadAttentionImpl::projections() const {
  return options_.self_attention
      ? std::vector<torch::nn::Linear>{qkv}
      : std::vector<torch::nn::Linear>{query, key, value};
}

void TensorParallelMultiheadAttentionImpl::check_inputs(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v) const {
  for (const auto* t : {&q, &k, &v}) {
    const bool left_out = options_.self_attention && t != &q && !t->defined();
    DTENSOR_CHECK_VALUE(
        left_out || (t->defined() && t->dim() == 3),
        "[TensorParallelMultiheadAttention] the number of dimensions of an "
        "input is {}. Pass (batch, sequence, embed_dim){}",
        t->defined() ? t->dim() : 0,
        options_.self_attention ? "." : " for query, key and value each.");
    DTENSOR_CHECK_VALUE(
        left_out || !options_.self_attention || t->is_same(q),
        "[TensorParallelMultiheadAttention] self-attention got different "
        "tensors. Pass only the query, or "
        "make the module with self_attention = false.");
  }
}

// Splits (b, s, heads * parts * d) into `parts` of (b, heads, s, d).
std::vector<at::Tensor> TensorParallelMultiheadAttentionImpl::heads_of(
    const at::Tensor& t,
    int64_t parts) const {
  const int64_t head_dim = embed_dim_ / num_heads_;
  return t.view({t.size(0), t.size(1), -1, parts * head_dim})
      .transpose(1, 2)
      .split(head_dim, -1);
}

at::Tensor TensorParallelMultiheadAttentionImpl::forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v) {
  check_inputs(q, k, v);
  const auto heads = options_.self_attention ? heads_of(qkv(q), 3)
                                             : std::vector<at::Tensor>{
                                                   heads_of(query(q), 1)[0],
                                                   heads_of(key(k), 1)[0],
                                                   heads_of(value(v), 1)[0]};
  const auto mixed = at::scaled_dot_product_attention(
      heads[0], heads[1], heads[2], {}, is_training() ? options_.dropout : 0);
  return proj(mixed.transpose(1, 2).flatten(2)); // (b, s, heads * d)
}

void TensorParallelMultiheadAttentionImpl::check_copy(
    const torch::nn::MultiheadAttention& that) const {
  const auto& other = that->options;
  DTENSOR_CHECK_VALUE(
      other.embed_dim() == embed_dim_ && other.num_heads() == num_heads_,
      "[TensorParallelMultiheadAttention] cannot copy() from {} heads of "
      "embed_dim {} to {} heads of "
      "embed_dim {}. Make the module with the same num_heads and embed_dim.",
      other.num_heads(),
      other.embed_dim(),
      num_heads_,
      embed_dim_);
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      that->_qkv_same_embed_dim && !that->bias_k.defined() &&
          !other.add_zero_attn(),
      "[TensorParallelMultiheadAttention] cannot copy() from a module with "
      "kdim, vdim, add_bias_kv or add_zero_attn. Only embed_dim, num_heads, "
      "bias and dropout are supported.");
  DTENSOR_CHECK(
      !is_parallel(*this) && !is_parallel(*that),
      "[TensorParallelMultiheadAttention] cannot copy() from or to a module "
      "that is already parallelized. Call copy() before parallelize_module.");
}

void TensorParallelMultiheadAttentionImpl::copy(
    const torch::nn::MultiheadAttention& that) {
  check_copy(that);
  const at::NoGradGuard no_grad;
  const auto& weight = that->in_proj_weight;
  const auto& bias = that->in_proj_bias;
  options_.dropout = that->options.dropout();
  options_.bias = that->out_proj->bias.defined();
  options_.add_bias_kv = bias.defined();
  reset();
  to(weight.device(), weight.scalar_type());
  if (options_.self_attention) {
    fill(
        qkv,
        heads_first(weight, num_heads_),
        bias.defined() ? heads_first(bias, num_heads_) : bias);
  } else {
    const auto weights = weight.chunk(3);
    const auto biases =
        bias.defined() ? bias.chunk(3) : std::vector<at::Tensor>(3);
    const auto linears = projections();
    for (size_t i = 0; i < linears.size(); ++i) {
      auto linear = linears[i];
      fill(linear, weights[i], biases[i]);
    }
  }
  fill(proj, that->out_proj->weight, that->out_proj->bias);
}

} // namespace dtensor::torch_2_0
