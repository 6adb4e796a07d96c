// SPDX-License-Identifier: BSD-3-Clause
// A model on ranks that stay alive, and its answers to prompts.
#pragma once

#include "model.h"
#include "sample.h"

#include <dtensor/dtensor.h>

#include <functional>
#include <vector>

namespace llama {

using Tokens = std::vector<int64_t>;

struct GenerateOptions {
  int64_t tokens = 64; // maximum per prompt
  Sampling sampling = {};
  uint64_t seed = 0;
  std::function<bool(int64_t)> is_end = nullptr;
  /// Called for each token as it is generated: the prompt's index, the token.
  std::function<void(size_t, int64_t)> on_token = nullptr;
};

struct Generated {
  std::vector<Tokens> tokens;        // generated tokens of each prompt
  std::vector<torch::Tensor> logits; // of each pass, if requested
  double prompt_seconds = 0;         // time to the first token
  double seconds = 0;                // time of the later tokens
  int64_t passes = 0;                // forward passes after the prompts
  std::vector<int64_t> collectives;  // of each pass; the prompts' pass is first
};

class Generator {
 public:
  Generator(
      const Config& config,
      int64_t ranks,
      const dtensor::WeightFilePtr& file);

  /// Generates answers to prompts of any lengths in one batch.
  Generated operator()(
      const std::vector<Tokens>& prompts,
      const GenerateOptions& options,
      bool keep_logits = false);

 private:
  dtensor::Ranks ranks_;
  std::vector<Llama> models_; // destroyed before the ranks end
};

} // namespace llama
