// SPDX-License-Identifier: BSD-3-Clause
// SmolLM2-135M, which `make models` downloads: a prompt of 128 tokens and 64
// generated tokens. Modes: one process with two threads (plain modules), two
// ranks (examples/llama), and two ranks with hand-written tensor parallelism.
// --profile prints the time profile of rank 0.
#include "harness.h"
#include "llama_by_hand.h"
#include "profile.h"

#include <dtensor/dtensor.h>
#include <examples/llama/load.h>
#include <examples/llama/sample.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>

namespace {

using llama::Config;
using llama::Llama;
using torch::Tensor;

constexpr int64_t kPrompt = 128;
constexpr int64_t kTokens = 64;
constexpr size_t kRounds = 4;
constexpr size_t kPrompts = 20; // rounds if no tokens follow
constexpr int kSkipped = 77;

struct Mode {
  std::string name;
  int64_t ranks;
  int intra_op_threads;
};
const std::vector<Mode> kModes = {
    {"single", 1, 2},
    {"tp", 2, 1},
    {"hand", 2, 1}};

Llama plain_model(const Config& config, const dtensor::WeightFilePtr& file) {
  Llama model(config);
  if (file != nullptr) {
    dtensor::load_weights(*model, *file, llama::load_options(file));
  }
  model->eval();
  return model;
}

struct Times {
  std::vector<double> prompt_us; // by round
  std::vector<double> token_us;
  int64_t sum = 0; // checksum of the tokens
};

// Returns the most probable token after the given and the earlier ones.
using NextToken = std::function<Tensor(const Tensor& ids, llama::State& state)>;

NextToken model_of(
    const Mode& mode,
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file) {
  const auto padding = torch::zeros({1}, torch::kLong);
  if (mode.name == "tp") {
    auto model = llama::make_model(config, mesh, file);
    return [=](const Tensor& ids, llama::State& state) mutable {
      const dtensor::DTensor logits(model(ids, padding, state));
      return llama::next_tokens(logits, {});
    };
  }
  auto model = plain_model(config, file);
  if (mode.name == "hand") {
    bench::LlamaByHand by_hand(model, config, dtensor::get_group(mesh));
    return [=](const Tensor& ids, llama::State& state) mutable {
      return by_hand.next_tokens(ids, padding, state);
    };
  }
  return [=](const Tensor& ids, llama::State& state) mutable {
    return model(ids, padding, state).argmax(-1);
  };
}

void round(
    const NextToken& next_token,
    const Tensor& prompt,
    int64_t tokens,
    Times& times) {
  llama::State state;
  const auto begin = bench::now();
  auto next = next_token(prompt, state);
  times.sum = next.item<int64_t>();
  const auto behind = bench::now();
  times.prompt_us.push_back((behind - begin) * 1e6);
  for (int64_t i = 1; i < tokens; ++i) {
    next = next_token(next.unsqueeze(1), state);
    times.sum += next.item<int64_t>();
  }
  if (tokens > 1) {
    times.token_us.push_back(
        (bench::now() - behind) * 1e6 / static_cast<double>(tokens - 1));
  }
}

// Runs on every rank: prompts, each followed by tokens.
Times run(
    const Mode& mode,
    const Config& config,
    const dtensor::WeightFilePtr& file,
    size_t rounds,
    int64_t tokens,
    bench::Profile* profile) {
  dtensor::manual_seed(0);
  const bench::Profile::Scope profiled(profile);
  const auto mesh = dtensor::init_device_mesh(torch::kCPU, {mode.ranks});
  const auto next_token = model_of(mode, config, mesh, file);
  const c10::InferenceMode inference;
  const auto prompt =
      (torch::arange(kPrompt) * 7919 % config.vocabulary).unsqueeze(0);
  Times times;
  round(next_token, prompt, tokens, times); // warm up
  times.prompt_us.clear();
  times.token_us.clear();
  if (profile != nullptr) {
    profile->start();
  }
  for (size_t i = 0; i < rounds; ++i) {
    round(next_token, prompt, tokens, times);
  }
  return times;
}

void report(
    const std::string& benchmark,
    const std::vector<double>& us,
    int64_t tokens,
    int64_t sum) {
  const auto figure = bench::median(us);
  bench::report(
      benchmark,
      {{"us", figure},
       {"tokens_per_second", 1e6 * static_cast<double>(tokens) / figure},
       {"sum", static_cast<double>(sum)},
       {"spread", bench::spread(us, figure)}});
}

// Measures both results of one mode, or only prompts.
void measure(
    const Mode& mode,
    const Config& config,
    const dtensor::WeightFilePtr& file,
    const bench::Options& options,
    bool profiling) {
  const auto prompts = "smollm2/prompt/" + mode.name;
  const auto decoding = "smollm2/decode/" + mode.name;
  const bool decodes = options.wants(decoding);
  if (!decodes && !options.wants(prompts)) {
    return;
  }
  const auto tokens = !decodes ? 1 : options.smoke ? 3 : kTokens;
  const auto rounds = options.smoke ? 1 : decodes ? kRounds : kPrompts;
  Times times;
  bench::Profile profile;
  dtensor::run_ranks(
      mode.ranks,
      [&](int64_t rank) {
        const bool watched = profiling && rank == 0;
        auto mine = run(
            mode, config, file, rounds, tokens, watched ? &profile : nullptr);
        if (rank == 0) {
          times = std::move(mine);
        }
      },
      {.intra_op_threads = mode.intra_op_threads});
  if (profiling) {
    const auto what = decodes ? "prompt and tokens, " : "prompt, ";
    profile.print(what + mode.name, static_cast<int64_t>(rounds));
    return;
  }
  if (decodes) {
    report(decoding, times.token_us, 1, times.sum);
  }
  if (options.wants(prompts)) {
    report(prompts, times.prompt_us, kPrompt, times.sum);
  }
}

} // namespace

int main(int argc, char** argv) {
  bool profiling = false;
  const auto options = bench::parse(
      argc,
      argv,
      "A prompt and tokens of SmolLM2-135M in float32",
      {{"--profile", "Print where rank 0's time goes", &profiling}});
  dtensor::WeightFilePtr file;
  Config config; // a small random model, as a test
  if (!options.smoke) {
    if (!std::filesystem::exists(DTENSOR_SMOLLM2)) {
      std::cout << "skipped: no file " << DTENSOR_SMOLLM2
                << ", run `make models`\n";
      return kSkipped;
    }
    file = dtensor::open_weights(DTENSOR_SMOLLM2);
    config = llama::config_of(*file);
  }
  config.context = 256;
  for (const Mode& mode : kModes) {
    measure(mode, config, file, options, profiling);
  }
}
