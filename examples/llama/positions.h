// SPDX-License-Identifier: BSD-3-Clause
// Where tokens stand: how their features are turned, whom they may look at, and
// the keys and values of those before them.
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

/// What has been read so far.
struct State {
  std::vector<Cache> caches; // of each layer
  int64_t past = 0;          // tokens
};

/// Where the tokens of a pass are. Rows of a batch end together: a shorter one
/// begins with padding, which nobody looks at.
struct Positions {
  int64_t past;                     // tokens before
  int64_t room;                     // for tokens in a cache
  torch::Tensor cos;                // (B, 1, T, D)
  torch::Tensor sin;                // (B, 1, T, D)
  std::optional<torch::Tensor> may; // (B, 1, T, past + T); none: all of them
  bool is_causal;                   // instead of `may`
};

/// Rotary embeddings: pairs of features that are half a head apart are turned
/// by angles that grow with the position.
struct RopeImpl : torch::nn::Module {
  explicit RopeImpl(const Config& config);

  /// Those of `length` tokens behind `past`; `padding` (B) counts what the rows
  /// begin with.
  Positions forward(int64_t length, const torch::Tensor& padding, int64_t past)
      const;

  torch::Tensor cos, sin; // (context, D)
};
TORCH_MODULE(Rope);

/// x (B, heads, T, D), turned.
torch::Tensor rotated(const torch::Tensor& x, const Positions& at);

/// Writes `now` (B, heads, T, D) behind the tokens before, into `cache`, which
/// is allocated then; returns (B, heads, past + T, D).
torch::Tensor
remember(torch::Tensor& cache, const torch::Tensor& now, const Positions& at);

} // namespace llama
