// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention/attention_block_impl.h>

#include <dtensor/tensor/memory_order_impl.h>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>

#include <limits>

namespace dtensor::detail {
namespace {

bool has_kernel(const AttentionBlock& block) {
  const auto dtype = block.query.scalar_type();
  const auto is_dense = [](const at::Tensor& t) { return t.stride(-1) == 1; };
  return block.query.is_cpu() && block.query.size(-1) > 0 &&
      block.query.size(-1) == block.value.size(-1) &&
      (dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
       dtype == at::kHalf) &&
      is_dense(block.query) && is_dense(block.key) && is_dense(block.value);
}

// Returns keys or values (B, K, S, E) expanded to (B, H, S, E), in the dtype of
// sums.
at::Tensor for_queries(const AttentionBlock& block, const at::Tensor& held) {
  const auto wide = held.to(sum_dtype(held.scalar_type()));
  const auto each = block.query.size(1) / held.size(1);
  return each == 1 ? wide : wide.repeat_interleave(each, 1);
}

// Sums gradients over the query heads that share a key head.
at::Tensor to_keys(const AttentionBlock& block, const at::Tensor& grad) {
  const auto heads = block.key.size(1);
  return heads == grad.size(1)
      ? grad
      : grad.unflatten(1, {heads, grad.size(1) / heads}).sum(2);
}

// Returns scores (B, H, L, S) before the softmax.
at::Tensor scores(const AttentionBlock& block, const at::Tensor& key) {
  const auto dtype = key.scalar_type();
  auto result =
      at::matmul(block.query.to(dtype) * block.scale, key.transpose(-2, -1));
  if (block.causal) {
    const auto seen = at::ones(
                          {result.size(-2), result.size(-1)},
                          result.options().dtype(at::kBool))
                          .tril();
    result.masked_fill_(
        seen.logical_not_(), -std::numeric_limits<double>::infinity());
  }
  return result;
}

AttentionRows attend_by_definition(const AttentionBlock& block) {
  const auto key = for_queries(block, block.key);
  const auto weights = scores(block, key);
  const auto lse = at::logsumexp(weights, -1);
  return {
      at::matmul(
          (weights - lse.unsqueeze(-1)).exp_(),
          for_queries(block, block.value)),
      lse};
}

// Computes the softmax backward. `rows` covers all keys: exp(scores - lse) are
// the block's weights in the softmax over all keys, and `mean` is the sum of
// grad * out per row.
AttentionGradients gradients_by_definition(
    const AttentionBlock& block,
    const AttentionRows& rows,
    const at::Tensor& grad) {
  const auto key = for_queries(block, block.key);
  const auto weights = (scores(block, key) - rows.lse.unsqueeze(-1)).exp_();
  const auto wide = grad.to(key.scalar_type());
  const auto mean = (wide * rows.out).sum(-1, /*keepdim=*/true);
  const auto of_scores =
      (at::matmul(wide, for_queries(block, block.value).transpose(-2, -1)) -
       mean) *
      weights * block.scale;
  return {
      at::matmul(of_scores, key),
      to_keys(
          block,
          at::matmul(
              of_scores.transpose(-2, -1), block.query.to(key.scalar_type()))),
      to_keys(block, at::matmul(weights.transpose(-2, -1), wide))};
}

} // namespace

at::ScalarType sum_dtype(at::ScalarType dtype) {
  return at::toOpMathType(dtype);
}

AttentionRows attend(const AttentionBlock& block) {
  if (!has_kernel(block)) {
    return attend_by_definition(block);
  }
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      block.query,
      block.key,
      block.value,
      /*dropout_p=*/0,
      block.causal,
      /*attn_mask=*/std::nullopt,
      block.scale);
  return {out, lse};
}

AttentionGradients gradients_of(
    const AttentionBlock& block,
    const AttentionRows& rows,
    const at::Tensor& grad) {
  if (!has_kernel(block)) {
    return gradients_by_definition(block, rows, grad);
  }
  auto [query, key, value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad,
          block.query,
          block.key,
          block.value,
          rows.out,
          rows.lse,
          /*dropout_p=*/0,
          block.causal,
          /*attn_mask=*/std::nullopt,
          block.scale);
  return {query, key, value};
}

MergedRows::MergedRows(const at::Tensor& query, int64_t features)
    : query_(query),
      sizes_(query.sizes()) {
  sizes_.back() = features;
}

void MergedRows::begin() {
  const auto options = query_.options().dtype(sum_dtype(query_.scalar_type()));
  rows_.out = at::empty_strided(
                  sizes_, dense_strides(sizes_, query_.strides()), options)
                  .zero_();
  rows_.lse = at::full(
      query_.sizes().slice(0, 3),
      -std::numeric_limits<double>::infinity(),
      options);
}

// Interpolates between old and new rows. The weight of the new rows is
// exp(lse_new) / (exp(lse_old) + exp(lse_new)) = sigmoid(lse_new - lse_old),
// which cannot overflow.
void MergedRows::add(Interval queries, const AttentionRows& rows) {
  const auto dtype = sum_dtype(query_.scalar_type());
  if (!rows_.out.defined() && queries.size() == query_.size(2)) {
    rows_ = {rows.out.to(dtype), rows.lse};
    return;
  }
  if (!rows_.out.defined()) {
    begin();
  }
  auto out = rows_.out.narrow(2, queries.begin, queries.size());
  auto lse = rows_.lse.narrow(2, queries.begin, queries.size());
  const auto share = at::sigmoid(rows.lse - lse).unsqueeze_(-1);
  out.lerp_(rows.out.to(dtype), share);
  at::logaddexp_out(lse, lse, rows.lse);
}

AttentionRows MergedRows::take_rows() {
  if (!rows_.out.defined()) {
    begin();
  }
  return {
      in_memory_order(
          rows_.out.to(query_.scalar_type()),
          dense_strides(sizes_, query_.strides())),
      rows_.lse};
}

} // namespace dtensor::detail
