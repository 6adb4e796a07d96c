// SPDX-License-Identifier: BSD-3-Clause
#include "positions.h"

namespace llama {

using torch::Tensor;

RopeImpl::RopeImpl(const Config& c) {
  const auto half = torch::arange(0, c.head_size(), 2, torch::kDouble);
  const auto angles = torch::outer(
      torch::arange(c.context, torch::kDouble),
      torch::pow(c.rope_base, -half / c.head_size()));
  const auto both = torch::cat({angles, angles}, -1);
  cos = register_buffer("cos", both.cos().to(c.dtype));
  sin = register_buffer("sin", both.sin().to(c.dtype));
}

Positions RopeImpl::forward(int64_t length, const Tensor& padding, int64_t past)
    const {
  const auto now = torch::arange(past, past + length);
  const auto places = (now - padding.unsqueeze(1)).clamp_min(0); // (B, T)
  Positions at{
      past,
      cos.size(0),
      cos.index({places}).unsqueeze(1),
      sin.index({places}).unsqueeze(1),
      {},
      past == 0 && length > 1};
  if (padding.any().item<bool>() || (past > 0 && length > 1)) {
    const auto keys = torch::arange(past + length);
    const auto before = keys <= now.unsqueeze(1); // (T, past + T)
    const auto same = keys == now.unsqueeze(1);   // padding attends to itself
    at.may = before.logical_and(keys >= padding.view({-1, 1, 1, 1}))
                 .logical_or(same);
    at.is_causal = false;
  }
  return at;
}

Tensor rotated(const Tensor& x, const Positions& at) {
  const auto halves = x.chunk(2, -1);
  return x * at.cos + torch::cat({-halves[1], halves[0]}, -1) * at.sin;
}

Tensor remember(Tensor& cache, const Tensor& now, const Positions& at) {
  if (!cache.defined()) {
    cache = now.new_empty({now.size(0), now.size(1), at.room, now.size(3)});
  }
  cache.narrow(2, at.past, now.size(2)).copy_(now);
  return cache.narrow(2, 0, at.past + now.size(2));
}

} // namespace llama
