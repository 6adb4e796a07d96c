// SPDX-License-Identifier: BSD-3-Clause
// A training run of a GPT. The options determine how layers, parameters and
// batches are distributed over ranks.
#pragma once

#include "../gpt/model.h"
#include "../gpt/text.h"

#include <functional>
#include <string>
#include <vector>

namespace training {

struct Options {
  // Sizes of the mesh: ranks that replicate the model (dp), shard its
  // parameters (fsdp), and shard its layers (tp). The number of ranks is the
  // product.
  int64_t dp = 1;
  int64_t fsdp = 1;
  int64_t tp = 1;
  bool sequence = false; // also shards activations between blocks

  gpt::Config model;
  torch::Dtype dtype = torch::kFloat; // of the parameters
  bool bfloat16 = false;              // computes in bfloat16
  uint64_t seed = 0;

  int64_t steps = 100;
  int64_t batch = 32;     // sequences per step, on all ranks together
  int64_t accumulate = 1; // backward passes per step
  double learning_rate = 1e-3;
  int64_t warmup = 10; // steps
  double max_norm = 1;
  int64_t evaluate_every = 25; // steps; 0: never

  std::string folder; // for checkpoints; empty: none
  int64_t checkpoint_every = 50;
  int64_t keep = 2;
  bool resume = false;

  int64_t ranks() const {
    return dp * fsdp * tp;
  }
};

struct Evaluation {
  int64_t step;
  double loss;
};

/// Results of a run, on every rank.
struct Result {
  int64_t first_step = 0; // step at which the run resumed
  std::vector<double> losses;
  std::vector<Evaluation> evaluations;
  double tokens_per_second = 0;
  std::vector<double> state_mb; // by rank, after a step
  std::vector<double> peak_mb;  // by rank: maximum at any time
};

using Progress = std::function<void(int64_t step, double loss)>;

/// Trains on options.ranks() ranks: threads, or a launcher's processes.
Result train(
    const Options& options,
    const gpt::Text& text,
    const Progress& progress = nullptr);

/// Returns the rate of step `step` of `steps`: linear warmup, then half a
/// cosine down to a tenth.
double learning_rate(const Options& options, int64_t step);

} // namespace training
