// SPDX-License-Identifier: BSD-3-Clause
// Next token from logits that stay sharded. Ranks exchange a few local results
// and choose the same token.
#pragma once

#include <ATen/core/Generator.h>
#include <dtensor/dtensor.h>

#include <optional>

namespace llama {

struct Sampling {
  double temperature = 0; // 0: the most probable token
  double top_p = 1;       // fewest tokens with this probability
  // Generator with equal seeds on all ranks. Default: the rank's generator. If
  // local shards are uneven, the default gives other draws than on one rank.
  std::optional<at::Generator> generator = std::nullopt;
};

/// Returns the next tokens (B), on every rank, from logits (B, V) in S(1).
/// Takes one collective, or two if many tokens are candidates. Draws from
/// `sampling.generator`.
torch::Tensor next_tokens(
    const dtensor::DTensor& logits,
    const Sampling& sampling);

} // namespace llama
