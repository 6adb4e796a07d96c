// SPDX-License-Identifier: BSD-3-Clause
// Trains one configuration, and compares two runs.
#pragma once

#include "plan.h"
#include "text.h"

#include <functional>
#include <string>
#include <vector>

namespace gpt {

struct Options {
  int64_t ranks = 2;
  Parallel parallel;
  Config model;
  int64_t steps = 50;
  int64_t batch = 8;
  double learning_rate = 1e-3;
  torch::Dtype dtype = torch::kFloat;
  uint64_t seed = 0;
  int64_t sample = 0; // characters to generate at the end
};

/// Results of a run: full tensors, independent of the layout.
struct Result {
  std::vector<double> losses;
  torch::OrderedDict<std::string, torch::Tensor> gradients; // of the last step
  torch::OrderedDict<std::string, torch::Tensor> weights;
  int64_t collectives = 0;   // of one step, including the optimizer
  std::string communication; // of one step, as a table
  double seconds = 0;
  int64_t tokens = 0;
  std::string sample;
};

using Progress =
    std::function<void(int64_t step, double loss, double tokens_per_second)>;

/// Trains on options.ranks ranks: threads, or the processes of a launcher.
Result train(
    const Options& options,
    const Text& text,
    const Progress& progress = nullptr);

/// Largest absolute differences between two runs.
struct Difference {
  double loss = 0;
  double gradients = 0;
  double weights = 0;
};
Difference compare(const Result& a, const Result& b);

} // namespace gpt
