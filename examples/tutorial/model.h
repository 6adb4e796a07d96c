// SPDX-License-Identifier: BSD-3-Clause
// The model of the tutorial and its data: plain LibTorch, written for one
// device. No code here depends on ranks.
#pragma once

#include "../arguments.h"

#include <torch/torch.h>

#include <cstdint>

namespace tutorial {

// [model]
constexpr int64_t kVocab = 32;
constexpr int64_t kWidth = 48;

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { // (B, T, C) -> (B, T, C)
    return x + down(torch::gelu(up(norm(x))));
  }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear up =
      register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& ids) { // (B, T) -> (B, T, V)
    return head(second(first(embedding(ids))));
  }
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(kVocab, kWidth));
  Block first = register_module("first", Block());
  Block second = register_module("second", Block());
  torch::nn::Linear head = register_module(
      "head",
      torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocab).bias(false)));
};
TORCH_MODULE(Model);
// [/model]

// [data]
struct Batch {
  torch::Tensor ids;     // (B, T)
  torch::Tensor targets; // (B, T): the model learns to predict these
};

inline Batch next_batch() {
  const auto ids = torch::randint(kVocab, {8, 16}, torch::kLong);
  return {ids, (7 * ids + 3).remainder(kVocab)};
}

inline torch::Tensor loss_of(Model& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(
      model(batch.ids).flatten(0, 1), batch.targets.flatten());
}
// [/data]

// Returns the first argument of the program, or 2 if there is none.
inline int64_t ranks_of(int argc, char** argv) {
  const char* const usage = "[ranks, default 2]";
  arguments::check(argc, argv, 1, usage);
  return arguments::positive(argc, argv, 1, 2, usage);
}

} // namespace tutorial
