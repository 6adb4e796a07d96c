// SPDX-License-Identifier: BSD-3-Clause
// Trains a GPT on a text with tensor parallelism, on ranks that are threads or
// processes of a launcher.
//
//   gpt_train --ranks 2 --steps 200
//   mpirun -n 2 gpt_train --steps 200
//   gpt_train --ranks 4 --sequence-parallel --loss-parallel --compare
//   gpt_train --demo
#include "trainer.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cstdio>
#include <map>

namespace {

using gpt::Options;
using gpt::Result;

// Shows a progress bar on terminals, and prints an occasional line elsewhere.
gpt::Progress progress_bar(int64_t steps) {
  const bool terminal = isatty(fileno(stdout)) != 0;
  return [=](int64_t step, double loss, double tokens_per_second) {
    const auto line = fmt::format(
        "step {:4}/{}  loss {:.4f}  {:.0f} tokens/s",
        step,
        steps,
        loss,
        tokens_per_second);
    if (terminal) {
      const auto done = static_cast<size_t>(30 * step / steps);
      fmt::print(
          "\r[{}{}] {} ",
          std::string(done, '#'),
          std::string(30 - done, '.'),
          line);
      fmt::print("{}", step == steps ? "\n" : "");
    } else if (step == 1 || step == steps || step % 10 == 0) {
      fmt::print("{}\n", line);
    }
    std::fflush(stdout);
  };
}

std::string name_of(const Options& options) {
  auto name =
      fmt::format("{} rank{}", options.ranks, options.ranks == 1 ? "" : "s");
  if (options.ranks > 1) {
    name += " TP";
  }
  name += options.parallel.sequence ? "+SP" : "";
  name += options.parallel.loss ? "+loss_parallel" : "";
  return name;
}

int64_t expected(const Options& options) {
  return options.ranks == 1
      ? 0
      : gpt::expected_collectives(options.model.layers, options.parallel);
}

void print_comparison(
    const Options& options,
    const Result& result,
    const Result& single) {
  const auto difference = gpt::compare(result, single);
  fmt::print(
      "{:28} loss {:.4f} -> {:.4f}  largest difference to one rank: loss "
      "{:.1e}, gradients {:.1e}, weights {:.1e}  collectives/step {} "
      "(expected {})  {:.0f} tokens/s\n",
      name_of(options),
      result.losses.front(),
      result.losses.back(),
      difference.loss,
      difference.gradients,
      difference.weights,
      result.collectives,
      expected(options),
      static_cast<double>(result.tokens) / result.seconds);
  std::fflush(stdout);
}

// Runs the demo with one dtype: compares every configuration with one rank.
// Returns false if a difference or a count is wrong.
bool demo(Options options, const gpt::Text& text, double tolerance) {
  bool good = true;
  options.ranks = 1;
  options.parallel = {};
  const auto single = gpt::train(options, text);
  print_comparison(options, single, single);
  for (const int64_t ranks : {2, 4}) {
    for (const bool all : {false, true}) {
      options.ranks = ranks;
      options.parallel = {all, all};
      const auto result = gpt::train(options, text);
      print_comparison(options, result, single);
      good = good && gpt::compare(result, single).loss <= tolerance &&
          result.collectives == expected(options);
    }
  }
  return good;
}

int run_demo(Options options, const gpt::Text& text) {
  fmt::print("float64, {} steps; losses may differ by 1e-9\n", options.steps);
  options.dtype = torch::kDouble;
  const bool exact = demo(options, text, 1e-9);
  fmt::print("float32, {} steps; losses may differ by 1e-4\n", options.steps);
  options.dtype = torch::kFloat;
  const bool single_precision = demo(options, text, 1e-4);
  const bool good = exact && single_precision;
  fmt::print("overall okay: {}\n", good ? 1 : 0);
  return good ? 0 : 1;
}

// Uses the launcher's number of ranks. Only rank 0's process prints.
void be_one_of(const dtensor::Launched& ranks, Options& options) {
  options.ranks = ranks.size;
  if (ranks.rank != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) {
    fmt::print(stderr, "standard output cannot be closed\n");
  }
}

struct Prints {
  bool comparison = false;
  bool communication = false;
};

int run_one(const Options& options, const gpt::Text& text, Prints prints) {
  fmt::print(
      "{} on {} characters, alphabet of {}\n",
      name_of(options),
      text.ids.numel(),
      text.vocab());
  const auto result = gpt::train(options, text, progress_bar(options.steps));
  if (prints.communication) {
    fmt::print("{}\n", result.communication);
  }
  if (prints.comparison) {
    auto alone = options;
    alone.ranks = 1;
    alone.parallel = {};
    alone.sample = 0;
    print_comparison(options, result, gpt::train(alone, text));
  }
  if (!result.sample.empty()) {
    fmt::print("--- sample\n{}\n", result.sample);
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT on a text, tensor-parallel.");
  Options options;
  std::string text_path;
  Prints prints;
  bool all_configurations = false;
  options.sample = 200;
  app.add_option(
      "--ranks", options.ranks, "Ranks that are threads, without a launcher");
  app.add_flag("--sequence-parallel", options.parallel.sequence);
  app.add_flag("--loss-parallel", options.parallel.loss);
  app.add_option("--layers", options.model.layers);
  app.add_option("--heads", options.model.heads);
  app.add_option("--width", options.model.width);
  app.add_option("--block", options.model.block, "Characters per sequence");
  app.add_option("--dropout", options.model.dropout);
  app.add_option("--batch", options.batch);
  app.add_option("--steps", options.steps);
  app.add_option("--lr", options.learning_rate);
  app.add_option("--seed", options.seed);
  app.add_option("--dtype", options.dtype, "float32, float64 or bfloat16")
      ->transform(CLI::CheckedTransformer(std::map<std::string, torch::Dtype>{
          {"float32", torch::kFloat},
          {"float64", torch::kDouble},
          {"bfloat16", torch::kBFloat16}}));
  app.add_option(
      "--text", text_path, "A text file; default: Debian's licences");
  app.add_option(
      "--sample", options.sample, "Characters to generate at the end");
  app.add_flag(
      "--compare", prints.comparison, "Also train on one rank and compare");
  app.add_flag("--comm", prints.communication, "Collectives of one step");
  app.add_flag("--demo", all_configurations, "All configurations, compared");
  CLI11_PARSE(app, argc, argv);

  try {
    const auto ranks = dtensor::launched();
    if (ranks && all_configurations) {
      fmt::print(stderr, "--demo starts its own ranks: use no launcher.\n");
      return 1;
    }
    if (ranks) {
      be_one_of(*ranks, options);
    }
    const auto text = gpt::read_text(text_path);
    options.model.vocab = text.vocab();
    if (all_configurations) {
      options.sample = 0;
      return run_demo(options, text);
    }
    return run_one(options, text, prints);
  } catch (const c10::Error& error) {
    fmt::print(stderr, "{}\n", error.what_without_backtrace());
    return 1;
  }
}
