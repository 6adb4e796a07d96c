// SPDX-License-Identifier: BSD-3-Clause
#include "generate.h"

#include "load.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <chrono>

namespace llama {
namespace {

using Clock = std::chrono::steady_clock;
using dtensor::DTensor;
using torch::Tensor;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Prompts in one batch; shorter prompts are padded at the beginning.
struct Batch {
  Tensor ids;     // (B, T)
  Tensor padding; // (B)
};

Batch batch_of(const std::vector<Tokens>& prompts) {
  size_t longest = 0;
  for (const auto& prompt : prompts) {
    longest = std::max(longest, prompt.size());
  }
  const auto rows = static_cast<int64_t>(prompts.size());
  const auto width = static_cast<int64_t>(longest);
  Batch batch{
      torch::zeros({rows, width}, torch::kLong),
      torch::zeros({rows}, torch::kLong)};
  for (int64_t b = 0; b < rows; ++b) {
    const auto& prompt = prompts[static_cast<size_t>(b)];
    const auto padding = width - static_cast<int64_t>(prompt.size());
    batch.padding[b] = padding;
    batch.ids[b].slice(0, padding).copy_(torch::tensor(prompt));
  }
  return batch;
}

// Counts this rank's collectives while it lives.
class Counter final : public dtensor::CommObserver {
 public:
  void on_collective(const dtensor::CollectiveEvent&) override {
    ++count;
  }

  int64_t count = 0;

 private:
  dtensor::CommObserverGuard guard_{*this};
};

// Generation on one rank. The result of the first rank is returned.
class Run {
 public:
  Run(Llama& model, const GenerateOptions& options, bool keep_logits)
      : model_(model),
        options_(options),
        keep_logits_(keep_logits) {}

  Generated operator()(const std::vector<Tokens>& prompts) {
    const auto [ids, padding] = batch_of(prompts);
    result_.tokens.resize(prompts.size());
    ended_.resize(prompts.size());
    const auto begin = Clock::now();
    auto next = pass(ids, padding);
    result_.prompt_seconds = seconds_since(begin);
    const auto behind = Clock::now();
    while (take(next)) {
      next = pass(next.unsqueeze(1), padding);
      ++result_.passes;
    }
    result_.seconds = seconds_since(behind);
    return std::move(result_);
  }

 private:
  Tensor pass(const Tensor& ids, const Tensor& padding) {
    const Counter counter;
    const DTensor logits(model_(ids, padding, state_));
    const auto next = next_tokens(logits, options_.sampling);
    result_.collectives.push_back(counter.count);
    if (keep_logits_) {
      result_.logits.push_back(logits.full_tensor().clone());
    }
    return next;
  }

  // Adds the tokens. Returns true if more follow.
  bool take(const Tensor& next) {
    bool more = false;
    for (size_t b = 0; b < ended_.size(); ++b) {
      if (ended_[b]) {
        continue;
      }
      const auto token = next[static_cast<int64_t>(b)].item<int64_t>();
      auto& tokens = result_.tokens[b];
      ended_[b] = options_.is_end && options_.is_end(token);
      if (!ended_[b]) {
        tokens.push_back(token);
        if (options_.on_token && dtensor::get_rank() == 0) {
          options_.on_token(b, token);
        }
        ended_[b] = static_cast<int64_t>(tokens.size()) >= options_.tokens;
      }
      more |= !ended_[b];
    }
    return more;
  }

  Llama& model_;
  const GenerateOptions& options_;
  bool keep_logits_;
  State state_;
  std::vector<bool> ended_;
  Generated result_;
};

} // namespace

Generator::Generator(
    const Config& config,
    int64_t ranks,
    const dtensor::WeightFilePtr& file)
    : ranks_(ranks),
      models_(static_cast<size_t>(ranks), nullptr) {
  ranks_.run([&](int64_t rank) {
    dtensor::manual_seed(0);
    const auto mesh = dtensor::init_device_mesh(torch::kCPU, {ranks}, {"tp"});
    models_[static_cast<size_t>(rank)] = make_model(config, mesh, file);
  });
}

Generated Generator::operator()(
    const std::vector<Tokens>& prompts,
    const GenerateOptions& options,
    bool keep_logits) {
  Generated result;
  ranks_.run([&](int64_t rank) {
    const c10::InferenceMode inference;
    auto seeded = options;
    seeded.sampling.generator = at::detail::createCPUGenerator(options.seed);
    auto mine =
        Run(models_[static_cast<size_t>(rank)], seeded, keep_logits)(prompts);
    if (rank == 0) {
      result = std::move(mine);
    }
  });
  return result;
}

} // namespace llama
