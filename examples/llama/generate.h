// SPDX-License-Identifier: BSD-3-Clause
// A model on ranks that live on, and what it answers to prompts.
#pragma once

#include "model.h"
#include "sample.h"

#include <dtensor/dtensor.h>

#include <functional>
#include <vector>

namespace llama {

using Tokens = std::vector<int64_t>;

struct GenerateOptions {
  int64_t tokens = 64; // at most, of each prompt
  Sampling sampling = {};
  uint64_t seed = 0;
  std::function<bool(int64_t)> is_end = nullptr;
  /// Told of each token as it comes: the prompt's number, the token.
  std::function<void(size_t, int64_t)> on_token = nullptr;
};

struct Generated {
  std::vector<Tokens> tokens;        // what follows each prompt
  std::vector<torch::Tensor> logits; // of each pass, if asked for
  double prompt_seconds = 0;         // until the first token
  double seconds = 0;                // of those behind it
  int64_t passes = 0;                // after the prompts
  std::vector<int64_t> collectives;  // of each pass, the prompts' first
};

class Generator {
 public:
  Generator(
      const Config& config,
      int64_t ranks,
      const dtensor::WeightFilePtr& file);

  /// Prompts of any lengths, together.
  Generated operator()(
      const std::vector<Tokens>& prompts,
      const GenerateOptions& options,
      bool keep_logits = false);

 private:
  dtensor::Ranks ranks_;
  std::vector<Llama> models_; // let go of before the ranks end
};

} // namespace llama
