// SPDX-License-Identifier: BSD-3-Clause
// Attention over a sequence that is spread over the ranks of a group: keys and
// values come by, and what a rank's queries see of each block is put together.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/attention_tokens_impl.h>
#include <dtensor/parallel/context_parallel.h>

namespace dtensor::detail {

/// The ranks that a sequence is spread over.
struct ContextRanks {
  DeviceMesh mesh;
  int64_t dim = 0;
};

/// What all ranks of a call know alike.
struct RingCall {
  ContextRanks ranks;
  TokensOfRanks queries;
  TokensOfRanks keys;
  bool causal = false;
  double scale = 1;
  RotateMethod method = RotateMethod::kAllToAll;
};

/// (B, H, L, V) of this rank's (B, H, L, E) queries, given its (B, K, S, E)
/// keys and (B, K, S, V) values, of which each serves H / K heads of queries.
/// Differentiable, once. Saved are the parts alone, so that backward the blocks
/// come by again.
at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call);

} // namespace dtensor::detail
