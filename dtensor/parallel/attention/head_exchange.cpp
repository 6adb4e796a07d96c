// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention/ring_attention_impl.h>

#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/parallel/attention/context_attention_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr int64_t kHeads = 1;
constexpr int64_t kTokens = 2;

// Sharded dimension and its size on each rank.
struct ShardedDim {
  int64_t dim = 0;
  Sizes sizes;
};

// Records `step` as the backward of `result` if `of` requires grad.
template <class Step>
at::Tensor with_step(
    at::Tensor result,
    const char* name,
    const at::Tensor& of,
    Step step) {
  return records(of)
      ? record(step_node(name, std::move(step)), of, std::move(result))
      : result;
}

at::Tensor exchanged(
    const at::Tensor& part,
    const ContextRanks& ranks,
    const ShardedDim& from,
    const ShardedDim& to);

struct ExchangeStep {
  at::Tensor backward(const at::Tensor& grad) const {
    if (records(grad)) {
      name_missing_derivative(grad);
    }
    return exchanged(grad, ranks, to, from);
  }
  ContextRanks ranks;
  ShardedDim from;
  ShardedDim to;
};

// Changes the sharded dimension by an all-to-all.
at::Tensor exchanged(
    const at::Tensor& part,
    const ContextRanks& ranks,
    const ShardedDim& from,
    const ShardedDim& to) {
  at::Tensor result;
  {
    const c10::NoGradGuard no_grad;
    Group& group = get_group(ranks.mesh, ranks.dim);
    const auto mine = resized(
        part.sizes(), to.dim, to.sizes[static_cast<size_t>(group.rank())]);
    result = at::cat(
        group.all_to_all(
            split(part, to.dim, to.sizes),
            shapes_along(mine, from.dim, from.sizes)),
        from.dim);
  }
  return with_step(
      result, "ExchangeBackward", part, ExchangeStep{ranks, from, to});
}

at::Tensor moved_tokens(
    const at::Tensor& given,
    const ContextRanks& ranks,
    const Sizes& lengths,
    bool gathers);

struct MoveTokensStep {
  at::Tensor backward(const at::Tensor& grad) const {
    return moved_tokens(grad, ranks, lengths, !gathers);
  }
  ContextRanks ranks;
  Sizes lengths;
  bool gathers;
};

// Gathers the tokens of all ranks, or sums gathered tokens over the ranks and
// shards the sum: the backward of gathering.
at::Tensor moved_tokens(
    const at::Tensor& given,
    const ContextRanks& ranks,
    const Sizes& lengths,
    bool gathers) {
  at::Tensor result;
  {
    const c10::NoGradGuard no_grad;
    Group& group = get_group(ranks.mesh, ranks.dim);
    result = gathers
        ? group.all_gather(given, kTokens, lengths)
        : group.reduce_scatter(given, kTokens, ReduceOp::kSum, lengths);
  }
  return with_step(
      result,
      gathers ? "GatherTokensBackward" : "ScatterTokensBackward",
      given,
      MoveTokensStep{ranks, lengths, gathers});
}

// Computes attention with LibTorch's operator. The math fallback handles empty
// tensors, which other kernels reject or divide by.
at::Tensor full_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call) {
  const OutsideContext outside;
  const bool grouped = key.size(kHeads) != query.size(kHeads);
  if (query.numel() == 0 || key.numel() == 0) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, {}, 0, call.causal, {}, call.scale, grouped));
  }
  return at::scaled_dot_product_attention(
      query, key, value, {}, 0, call.causal, call.scale, grouped);
}

// Adds heads of zeros.
at::Tensor with_heads(const at::Tensor& t, int64_t heads) {
  return at::constant_pad_nd(t, {0, 0, 0, 0, 0, heads});
}

// Computes the attention of this rank's heads. A rank without heads computes it
// for zeros, as many as the first rank has heads, so that its gradients depend
// on the same tensors as those of other ranks, or have no derivative either.
at::Tensor attention_of_heads(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call,
    int64_t query_heads,
    int64_t key_heads) {
  const bool has_gradient = records(query) || records(key) || records(value);
  if (query.size(kHeads) > 0 || !has_gradient) {
    return full_attention(query, key, value, call);
  }
  const auto result = full_attention(
      with_heads(query, query_heads),
      with_heads(key, key_heads),
      with_heads(value, key_heads),
      call);
  return result.narrow(kHeads, 0, 0);
}

// Selects the key head of each query head in `queries`, from all key heads.
at::Tensor for_queries(const at::Tensor& held, Interval queries, int64_t each) {
  std::vector<int64_t> heads;
  for (int64_t head = queries.begin; head < queries.end; ++head) {
    heads.push_back(head / each);
  }
  return held.index_select(
      kHeads, at::tensor(heads, at::kLong).to(held.device()));
}

Sizes times(Sizes sizes, int64_t factor) {
  for (auto& size : sizes) {
    size *= factor;
  }
  return sizes;
}

} // namespace

at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call) {
  Group& group = get_group(call.ranks.mesh, call.ranks.dim);
  const ShardedDim queries{kTokens, lengths_of(call.queries)};
  const ShardedDim keys{kTokens, lengths_of(call.keys)};
  const int64_t held = key.size(kHeads);
  const int64_t each = held == 0 ? 1 : query.size(kHeads) / held;
  const bool gathers = held < group.size() && each > 1;
  const ShardedDim key_heads{kHeads, chunk_sizes(held, group.size())};
  const ShardedDim heads{
      kHeads,
      gathers ? chunk_sizes(query.size(kHeads), group.size())
              : times(key_heads.sizes, each)};
  const auto arrived = [&](const at::Tensor& t) {
    if (!gathers) {
      return exchanged(t, call.ranks, keys, key_heads);
    }
    return for_queries(
        moved_tokens(t, call.ranks, keys.sizes, /*gathers=*/true),
        chunk(query.size(kHeads), group.size(), group.rank()),
        each);
  };
  const auto q = exchanged(query, call.ranks, queries, heads);
  const auto k = arrived(key);
  const auto v = arrived(value);
  const auto result = attention_of_heads(
      q, k, v, call, heads.sizes[0], (gathers ? heads : key_heads).sizes[0]);
  return exchanged(result, call.ranks, heads, queries);
}

} // namespace dtensor::detail
