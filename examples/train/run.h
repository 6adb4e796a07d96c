// SPDX-License-Identifier: BSD-3-Clause
// A training run: a GPT whose layers, parameters and batches are spread over
// ranks, as the options say.
#pragma once

#include "../gpt/model.h"
#include "../gpt/text.h"

#include <functional>
#include <string>
#include <vector>

namespace training {

struct Options {
  // Ranks that repeat the model, that keep parts of it, and that cut its
  // layers. Ranks are the product.
  int64_t dp = 1;
  int64_t fsdp = 1;
  int64_t tp = 1;
  bool sequence = false; // activations between blocks are cut, too

  gpt::Config model;
  torch::Dtype dtype = torch::kFloat; // of parameters
  bool bfloat16 = false;              // they are computed with as bfloat16
  uint64_t seed = 0;

  int64_t steps = 100;
  int64_t batch = 32;     // sequences a step, on all ranks together
  int64_t accumulate = 1; // backward passes a step
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

/// What a run leaves, on every rank.
struct Result {
  int64_t first_step = 0; // where it went on
  std::vector<double> losses;
  std::vector<Evaluation> evaluations;
  double tokens_per_second = 0;
  std::vector<double> state_mb; // of each rank: parameters and what belongs to
  std::vector<double> peak_mb;  // them after a step, and the most of any moment
};

using Progress = std::function<void(int64_t step, double loss)>;

/// Trains on options.ranks() ranks: threads, or a launcher's processes.
Result train(
    const Options& options,
    const gpt::Text& text,
    const Progress& progress = nullptr);

/// Of step `step` of `steps`: up in a line, down in half a cosine to a tenth.
double learning_rate(const Options& options, int64_t step);

} // namespace training
