// SPDX-License-Identifier: BSD-3-Clause
// Attention over a spread sequence by exchanging heads (Ulysses): a rank gives
// its tokens of the others' heads away, and gets all tokens of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/parallel/ring_attention_impl.h>

namespace dtensor::detail {

/// The same result as ring_attention() for tokens that stand in order, by four
/// all-to-alls forward and four backward. Heads are dealt out as by
/// torch.chunk, queries with their keys; where there are fewer heads of keys
/// than ranks, keys and values are gathered instead. Differentiable, as far as
/// LibTorch's own attention is.
at::Tensor exchanged_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call);

} // namespace dtensor::detail
