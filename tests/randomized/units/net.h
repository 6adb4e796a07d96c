// SPDX-License-Identifier: BSD-3-Clause
// The model of a plan.
#pragma once

#include "plan.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

namespace dtensor::units {

struct BlockImpl;

/// A block, with or without hooks, that can be called.
struct Block {
  BlockPlan plan;
  std::shared_ptr<BlockImpl> module;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& ids)> forward;

  /// Calls the block as often as its plan says.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& ids) const;
};

/// A block. Input and output are (rows, width); `ids` are numbers below
/// kVocabulary, (rows).
struct BlockImpl : torch::nn::Module {
  BlockImpl(const BlockPlan& plan, int64_t width, const BlockImpl* shared);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids);

  Kind kind;
  int64_t hidden;
  torch::nn::Linear a{nullptr};
  torch::nn::Linear b{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Sequential sequence{nullptr};
  torch::nn::Conv1d conv{nullptr};
  torch::nn::GroupNorm channels{nullptr};
  torch::nn::Embedding embedding{nullptr};
  torch::nn::GRU gru{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::TransformerEncoderLayer attention{nullptr};
  at::Tensor table; // (hidden, width); kGain: (1); kNumber: ()
  at::Tensor square;
  std::vector<Block> inner;

 private:
  void make_layers(const BlockPlan& plan, int64_t width);
  at::Tensor with_views(const at::Tensor& x) const;
  at::Tensor recurrent(const at::Tensor& x);
};

constexpr int64_t kVocabulary = 5;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Plan& plan);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids);

  std::vector<Block> blocks;
  torch::nn::Linear out{nullptr};
  /// Plan of the current step.
  StepPlan step;
  bool throws = false;
};

struct Net {
  std::shared_ptr<NetImpl> module;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& ids)> forward;
};

/// Creates the model in float64, with the same parameters everywhere.
Net make_net(const Plan& plan);

/// Returns all blocks, inner ones first.
std::vector<const Block*> blocks_of(const std::vector<Block>& blocks);

} // namespace dtensor::units
