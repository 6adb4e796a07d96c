// SPDX-License-Identifier: BSD-3-Clause
// Positions of tokens: rotary angles, attention mask, and the cache of earlier
// keys and values.
#pragma once

#include "config.h"

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace llama {

/// Keys and values of the tokens so far, of one layer: (B, heads, room, D).
struct Cache {
  torch::Tensor keys, values;
};

/// State after the tokens read so far.
struct State {
  std::vector<Cache> caches; // by layer
  int64_t past = 0;          // tokens read
};

/// Positions of the tokens of a pass. Rows of a batch end together. A shorter
/// row begins with padding, which other tokens do not attend to.
struct Positions {
  int64_t past;                     // tokens before this pass
  int64_t room;                     // capacity of a cache in tokens
  torch::Tensor cos;                // (B, 1, T, D)
  torch::Tensor sin;                // (B, 1, T, D)
  std::optional<torch::Tensor> may; // (B, 1, T, past + T); none: no mask
  bool is_causal;                   // causal attention instead of `may`
};

/// Rotary embeddings: pairs of features half a head apart are rotated by angles
/// that grow with the position.
struct RopeImpl : torch::nn::Module {
  explicit RopeImpl(const Config& config);

  /// Returns the positions of `length` tokens after `past` tokens. `padding`
  /// (B) is the number of padding tokens at the start of each row.
  Positions forward(int64_t length, const torch::Tensor& padding, int64_t past)
      const;

  torch::Tensor cos, sin; // (context, D)
};
TORCH_MODULE(Rope);

/// Returns x (B, heads, T, D), rotated.
torch::Tensor rotated(const torch::Tensor& x, const Positions& at);

/// Writes `now` (B, heads, T, D) after the earlier tokens into `cache`,
/// allocating it if needed. Returns (B, heads, past + T, D).
torch::Tensor
remember(torch::Tensor& cache, const torch::Tensor& now, const Positions& at);

} // namespace llama
