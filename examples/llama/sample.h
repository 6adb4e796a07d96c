// SPDX-License-Identifier: BSD-3-Clause
// The next token, from logits that stay cut: ranks exchange what they have
// found, a few numbers, and choose alike.
#pragma once

#include <ATen/core/Generator.h>
#include <dtensor/dtensor.h>

#include <optional>

namespace llama {

struct Sampling {
  double temperature = 0; // 0: the most probable token
  double top_p = 1;       // of the fewest tokens with so much probability
  // Seeded alike on all ranks. Default: the rank's generator, whose draws
  // beside uneven local shards are not those of one rank.
  std::optional<at::Generator> generator = std::nullopt;
};

/// (B), on every rank, of logits (B, V) in S(1). One collective; where the
/// tokens in question are many, two. Draws from `sampling.generator`.
torch::Tensor next_tokens(
    const dtensor::DTensor& logits,
    const Sampling& sampling);

} // namespace llama
