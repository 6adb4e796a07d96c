// SPDX-License-Identifier: BSD-3-Clause
// BERT made of plain torch::nn modules with the names of the Python package
// transformers, written for one device, and its parallel plan.
#pragma once

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <cstdint>

namespace embed {

struct Config {
  int64_t vocabulary = 128;
  int64_t layers = 2;
  int64_t width = 48;
  int64_t hidden = 96;
  int64_t heads = 12;
  int64_t context = 64;
  int64_t types = 2;
  double epsilon = 1e-12;
  torch::Dtype dtype = torch::kFloat;
};

struct EmbeddingsImpl : torch::nn::Module {
  explicit EmbeddingsImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& ids);

  torch::nn::Embedding word_embeddings, position_embeddings,
      token_type_embeddings;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Embeddings);

struct SelfImpl : torch::nn::Module {
  explicit SelfImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask);

  int64_t head_size;
  torch::nn::Linear query, key, value;
};
TORCH_MODULE(Self);

/// Output layer after attention, and after the intermediate layer.
struct OutputImpl : torch::nn::Module {
  OutputImpl(int64_t from, const Config& config);
  torch::Tensor forward(const torch::Tensor& y, const torch::Tensor& x);

  torch::nn::Linear dense;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Output);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask);

  Self self;
  Output attended;
  torch::nn::Linear wide;
  Output output;
};
TORCH_MODULE(Layer);

struct BertImpl : torch::nn::Module {
  explicit BertImpl(const Config& config);

  /// Returns embeddings (B, C) of unit length: the mean over the words of ids
  /// (B, T) where `mask` (B, T) is set.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask);

  Embeddings embeddings;
  std::vector<Layer> layers;
};
TORCH_MODULE(Bert);

/// Returns the plan. It takes two all-reduces per layer. With sequence
/// parallelism, activations are sharded along T between the layer's parts, for
/// two all-gathers and two reduce-scatters.
dtensor::ParallelizePlan plan_of(const Config& config, bool sequence_parallel);

/// Returns a rank's sharded model, loaded from a file. Without a file, the
/// model is random.
Bert make_model(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file,
    bool sequence_parallel);

} // namespace embed
