// SPDX-License-Identifier: BSD-3-Clause
// Answers prompts with a Llama model, tensor-parallel on ranks that are
// threads.
//
//   llama --model SmolLM2-135M-Instruct.Q4_1.gguf --ranks 2 --chat
//       --prompt "Why is the sky blue?" --prompt "Name three rivers."
//   llama --model folder/with/safetensors --temperature 0.8 --top-p 0.9
//   llama --check          # a small random model on 1 to 4 ranks
#include "generate.h"
#include "load.h"
#include "tokenizer.h"

#include "../arguments.h"
#include "../check.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <iostream>

namespace {

using llama::Generated;
using llama::Tokens;

struct Options {
  std::string model;
  int64_t ranks = 1;
  std::vector<std::string> prompts;
  int64_t tokens = 64;
  llama::Sampling sampling;
  uint64_t seed = 0;
  int64_t context = 2048;
  std::string dtype = "f32";
  bool chat = false;
  bool ids = false;
  bool check = false;
};

torch::Dtype dtype_of(const std::string& name) {
  return name == "f64" ? torch::kDouble
      : name == "bf16" ? torch::kBFloat16
                       : torch::kFloat;
}

// Expects the same tokens on any number of ranks, and two collectives per
// layer.
void check() {
  const llama::Config config{.dtype = torch::kDouble};
  const std::vector<Tokens> prompts = {{1, 2, 3, 4, 5}, {6, 7}, {8}};
  for (const double temperature : {0.0, 1.0}) {
    const llama::GenerateOptions options{
        .tokens = 12, .sampling = {temperature, 0.9}};
    const auto truth = llama::Generator(config, 1, nullptr)(prompts, options);
    // A prompt has the same answer alone and in a batch.
    CHECK_THAT(
        temperature > 0 ||
        llama::Generator(config, 1, nullptr)({prompts[1]}, options).tokens[0] ==
            truth.tokens[1]);
    for (const int64_t ranks : {2, 3, 4}) {
      const auto mine =
          llama::Generator(config, ranks, nullptr)(prompts, options);
      CHECK_THAT(mine.tokens == truth.tokens);
      if (temperature == 0) {
        CHECK_THAT(
            mine.collectives ==
            std::vector<int64_t>(12, 2 * config.layers + 2));
      }
    }
  }
  fmt::print("the same tokens on 1, 2, 3 and 4 ranks\n");
}

// Prints each token as it is generated if there is one prompt, else each answer
// when it is complete.
void answer(
    llama::Generator& generate,
    const llama::Tokenizer& tokenizer,
    const Options& options,
    const std::vector<std::string>& prompts) {
  std::vector<Tokens> ids;
  for (const auto& prompt : prompts) {
    ids.push_back(
        tokenizer.encode(options.chat ? tokenizer.chat(prompt) : prompt));
  }
  const auto print = [&](int64_t token) {
    fmt::print(
        "{}",
        options.ids ? fmt::format("{} ", token) : tokenizer.decode(token));
    std::fflush(stdout);
  };
  llama::GenerateOptions how{
      .tokens = options.tokens,
      .sampling = options.sampling,
      .seed = options.seed};
  how.is_end = [&](int64_t token) { return tokenizer.is_end(token); };
  if (ids.size() == 1) {
    how.on_token = [&](size_t, int64_t token) { print(token); };
  }
  const auto made = generate(ids, how);
  for (size_t i = 0; i < ids.size() && ids.size() > 1; ++i) {
    fmt::print("--- {}\n", prompts[i]);
    for (const auto token : made.tokens[i]) {
      print(token);
    }
    fmt::print("\n");
  }
  fmt::print(
      "\n[ranks: {}; prompt {:.0f} ms; {:.1f} tokens/s; {} collectives a "
      "token]\n",
      options.ranks,
      1e3 * made.prompt_seconds,
      static_cast<double>(made.passes * static_cast<int64_t>(ids.size())) /
          made.seconds,
      made.collectives.back());
}

void serve(const Options& options) {
  const auto file =
      options.model.empty() ? nullptr : dtensor::open_weights(options.model);
  auto config = file == nullptr ? llama::Config() : llama::config_of(*file);
  config.dtype = dtype_of(options.dtype);
  config.context = std::min(config.context, options.context);
  const auto tokenizer =
      file == nullptr ? llama::Tokenizer() : llama::Tokenizer(*file);
  llama::Generator generate(config, options.ranks, file);
  if (!options.prompts.empty()) {
    answer(generate, tokenizer, options, options.prompts);
    return;
  }
  for (std::string line;
       fmt::print("> "), std::fflush(stdout), std::getline(std::cin, line);) {
    if (!line.empty()) {
      answer(generate, tokenizer, options, {line});
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Answers prompts with a Llama model on several ranks of one process.");
  app.add_option("--model", options.model, "GGUF, safetensors or a folder");
  app.add_option("--ranks", options.ranks, "threads that share the model")
      ->check(CLI::PositiveNumber);
  app.add_option(
      "--prompt",
      options.prompts,
      "prompts to answer; default: lines of standard input");
  app.add_option(
         "--tokens", options.tokens, "maximum number of tokens per answer")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--temperature",
         options.sampling.temperature,
         "sampling temperature; 0: greedy")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--top-p",
         options.sampling.top_p,
         "cumulative probability of the candidates")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed, "seed for sampling");
  app.add_option(
         "--context",
         options.context,
         "maximum number of tokens in the context")
      ->check(CLI::PositiveNumber);
  app.add_option("--dtype", options.dtype, "f32, f64 or bf16")
      ->check(CLI::IsMember({"f32", "f64", "bf16"}));
  app.add_flag("--chat", options.chat, "use the chat template");
  app.add_flag("--ids", options.ids, "print token ids");
  app.add_flag("--check", options.check, "try it with a small random model");
  CLI11_PARSE(app, argc, argv);
  arguments::refuse_launcher("llama");
  try {
    if (options.check) {
      check();
    } else {
      serve(options);
    }
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  }
  return 0;
}
