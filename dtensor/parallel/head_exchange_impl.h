// SPDX-License-Identifier: BSD-3-Clause
// Attention over a sharded sequence by exchanging heads (Ulysses): a rank sends
// its tokens of other heads, and gets all tokens of its own heads.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/parallel/ring_attention_impl.h>

namespace dtensor::detail {

/// Returns the result of ring_attention() for tokens in order, by four
/// all-to-alls forward and four backward. Heads are assigned to ranks as by
/// torch.chunk, queries together with their keys. If there are fewer key heads
/// than ranks, keys and values are gathered instead. Differentiable as far as
/// LibTorch's own attention is.
at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call);

} // namespace dtensor::detail
