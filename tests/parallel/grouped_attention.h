// SPDX-License-Identifier: BSD-3-Clause
// Attention with fewer key and value heads than query heads.
#pragma once

#include <tests/parallel/modules.h>

#include <cstdint>

namespace dtensor::test_modules {

/// Features per head.
constexpr int64_t kHead = 4;

/// Grouped-query attention as in typical models: infers the number of heads
/// from the number of features, so that the same code works with local heads.
struct GroupedAttentionImpl : torch::nn::Module {
  GroupedAttentionImpl(int64_t heads, int64_t key_heads, bool bias = false)
      : width(heads * kHead),
        all_heads(heads),
        all_key_heads(key_heads) {
    const auto linear = [&](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
    };
    q = register_module("q", torch::nn::Linear(width, width));
    k = register_module("k", linear(width, key_heads * kHead));
    v = register_module("v", linear(width, key_heads * kHead));
    o = register_module("o", torch::nn::Linear(width, width));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const at::Tensor& t, int64_t count) {
      const auto known = is_dtensor(t) ? count : t.size(-1) / kHead;
      return t.view({t.size(0), t.size(1), known, kHead}).transpose(1, 2);
    };
    auto y = at::scaled_dot_product_attention(
        heads(q(x), all_heads),
        heads(k(x), all_key_heads),
        heads(v(x), all_key_heads),
        std::nullopt,
        0,
        /*is_causal=*/true,
        std::nullopt,
        /*enable_gqa=*/true);
    y = y.transpose(1, 2);
    return o(y.reshape({y.size(0), y.size(1), y.size(2) * kHead}));
  }

  int64_t width;
  int64_t all_heads;
  int64_t all_key_heads;
  torch::nn::Linear q{nullptr};
  torch::nn::Linear k{nullptr};
  torch::nn::Linear v{nullptr};
  torch::nn::Linear o{nullptr};
};
TORCH_MODULE(GroupedAttention);

} // namespace dtensor::test_modules
