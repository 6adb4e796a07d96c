// SPDX-License-Identifier: BSD-3-Clause
// Attention over a sequence that is sharded over the ranks of a group. Blocks
// of keys and values arrive one after the other. The results of a rank's
// queries for each block are merged.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/attention/attention_tokens_impl.h>
#include <dtensor/parallel/context_parallel.h>

namespace dtensor::detail {

/// Ranks that a sequence is sharded over: one dimension of a mesh.
struct ContextRanks {
  DeviceMesh mesh;
  int64_t dim = 0;
};

/// Arguments that are equal on all ranks of the call.
struct RingCall {
  ContextRanks ranks;
  TokensOfRanks queries;
  TokensOfRanks keys;
  bool causal = false;
  double scale = 1;
  RotateMethod method = RotateMethod::kAllToAll;
};

/// Computes attention (B, H, L, V) of this rank's (B, H, L, E) queries, given
/// its (B, K, S, E) keys and (B, K, S, V) values. Each key head serves H / K
/// query heads. Differentiable once. Saves only the local shards, so the
/// backward pass transfers the blocks again.
at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call);

/// Returns the result of ring_attention() for tokens in order, by exchanging
/// heads (Ulysses). A rank sends its tokens of other ranks' heads, and gets all
/// tokens of its own heads. This takes four all-to-alls forward and four
/// backward. Heads are assigned to ranks as by torch.chunk, queries together
/// with their keys. If there are fewer key heads than ranks, keys and values
/// are gathered instead. Differentiable as far as LibTorch's own attention is.
at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call);

} // namespace dtensor::detail
