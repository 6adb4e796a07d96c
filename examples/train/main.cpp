// SPDX-License-Identifier: BSD-3-Clause
// Trains a GPT on a text on any number of ranks. The ranks shard its layers
// (--tp), its parameters (--fsdp) and its batches (--fsdp, --dp). Stops, and
// resumes on another number of ranks.
//
//   train --fsdp 2 --tp 2 --sequence-parallel --folder run --svg loss.svg
//   train --fsdp 4 --folder run --resume --steps 200
//   dtensor-run -n 4 train --fsdp 4 --bfloat16
//   train --check
#include "curve.h"
#include "run.h"

#include <dtensor/dtensor.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace {

using training::Options;
using training::Result;

std::string list_of(const std::vector<double>& numbers) {
  std::string text;
  for (const auto number : numbers) {
    text += fmt::format(" {:.1f}", number);
  }
  return text;
}

void print_end(const Options& options, const Result& result) {
  fmt::print(
      "{} ranks (dp {}, fsdp {}, tp {}): {:.0f} tokens/s\n"
      "MB of memory of each rank, after a step:{}\n"
      "                                  peak: {}\n",
      options.ranks(),
      options.dp,
      options.fsdp,
      options.tp,
      result.tokens_per_second,
      list_of(result.state_mb),
      list_of(result.peak_mb));
}

double largest_difference(
    const std::vector<double>& a,
    const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

Options small() {
  Options options;
  options.model = {
      .vocab = 0,
      .block = 16,
      .layers = 2,
      .heads = 4,
      .width = 24,
      .dropout = 0};
  options.dtype = torch::kDouble;
  options.steps = 12;
  options.batch = 24;
  options.accumulate = 2;
  options.warmup = 3;
  options.evaluate_every = 6;
  options.checkpoint_every = 6;
  return options;
}

// Compares every way to distribute the run, and a run that stops half way and
// resumes on other ranks, with one rank.
int check(const gpt::Text& text) {
  struct Way {
    int64_t dp, fsdp, tp;
  };
  auto options = small();
  options.model.vocab = text.vocab();
  const auto alone = training::train(options, text);
  const auto folder =
      std::filesystem::temp_directory_path() / "dtensor_train_check";
  bool good = true;
  const auto report = [&](const std::string& what, double difference) {
    good &= difference < 1e-9;
    fmt::print("{:44} differs from one rank by {:.1e}\n", what, difference);
  };
  for (const auto& [dp, fsdp, tp] :
       {Way{1, 4, 1}, Way{1, 2, 2}, Way{2, 2, 1}, Way{2, 2, 2}}) {
    auto spread = options;
    spread.dp = dp;
    spread.fsdp = fsdp;
    spread.tp = tp;
    spread.sequence = true;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    spread.folder = folder;
    const auto result = training::train(spread, text);
    report(
        fmt::format("dp {}, fsdp {}, tp {}:", dp, fsdp, tp),
        largest_difference(result.losses, alone.losses));
    spread.resume = true;
    spread.dp = 1;
    spread.tp = 1;
    for (const int64_t others : {4, 3, 2, 1}) {
      std::filesystem::remove_all(folder / "step_12");
      spread.fsdp = others;
      const auto rest = training::train(spread, text);
      report(
          fmt::format("  stopped at step 6, resumed with fsdp {}:", others),
          largest_difference(
              rest.losses,
              {alone.losses.begin() + rest.first_step, alone.losses.end()}));
      good &= rest.first_step == 6;
    }
  }
  std::filesystem::remove_all(folder);
  return good ? 0 : 1;
}

// Error text of CLI11 for a number that is not positive. CLI11 itself finds
// texts that are not numbers.
std::string positive(const std::string& text) {
  double number = 1;
  CLI::detail::lexical_cast(text, number);
  return number > 0 ? "" : text + " is not positive";
}
std::string not_negative(const std::string& text) {
  double number = 0;
  CLI::detail::lexical_cast(text, number);
  return number >= 0 ? "" : text + " is negative";
}

void add_options(CLI::App& app, Options& options) {
  const auto add = [&](const char* name, int64_t& value, const char* what) {
    app.add_option(name, value, what)->check(positive)->capture_default_str();
  };
  add("--dp", options.dp, "ranks of data parallelism (model replicas)");
  add("--fsdp", options.fsdp, "ranks of fully sharded data parallelism");
  add("--tp", options.tp, "ranks of tensor parallelism");
  app.add_flag(
      "--sequence-parallel",
      options.sequence,
      "with --tp: also shard activations between blocks");
  app.add_flag("--bfloat16", options.bfloat16, "compute in bfloat16");
  add("--layers", options.model.layers, "number of blocks");
  add("--heads", options.model.heads, "attention heads; must divide the width");
  add("--width", options.model.width, "features per token");
  add("--block", options.model.block, "tokens per sequence");
  add("--steps", options.steps, "training steps in total");
  add("--batch", options.batch, "sequences per step, over all ranks");
  add("--accumulate", options.accumulate, "backward passes per step");
  app.add_option(
         "--learning-rate",
         options.learning_rate,
         "learning rate after warm-up")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "warm-up steps")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option(
         "--evaluate-every",
         options.evaluate_every,
         "steps between evaluations; 0: never")
      ->check(not_negative)
      ->capture_default_str();
  auto* folder = app.add_option(
      "--folder", options.folder, "folder for checkpoints; default: save none");
  add("--checkpoint-every",
      options.checkpoint_every,
      "steps between checkpoints; the last step is always saved");
  add("--keep", options.keep, "number of checkpoints to keep");
  app.add_flag(
         "--resume",
         options.resume,
         "resume from the latest checkpoint in --folder")
      ->needs(folder);
}

void check_divides(
    const char* option,
    int64_t number,
    int64_t by,
    const char* what) {
  if (number % by != 0) {
    throw CLI::ValidationError(
        option,
        fmt::format("{} is not a multiple of {} = {}", number, what, by));
  }
}

void check_options(const Options& options) {
  check_divides(
      "--batch",
      options.batch,
      options.dp * options.fsdp * options.accumulate,
      "dp x fsdp x accumulate");
  check_divides("--width", options.model.width, options.model.heads, "heads");
  const auto last = dtensor::latest_checkpoint(options.folder);
  if (last && !options.resume) {
    throw CLI::ValidationError(
        "--folder",
        fmt::format(
            "{} already exists: pass --resume, or another folder", *last));
  }
}

int run(const Options& options, const gpt::Text& text, const std::string& svg) {
  if (!options.folder.empty()) {
    std::filesystem::create_directories(options.folder);
  }
  const auto progress = [&](int64_t step, double loss) {
    if (step % 10 == 0 || step == options.steps) {
      fmt::print("step {:4}/{}  loss {:.4f}\n", step, options.steps, loss);
      std::fflush(stdout);
    }
  };
  const auto launched = dtensor::launched();
  const bool is_first = !launched || launched->rank == 0;
  if (options.resume && is_first) {
    const auto last = dtensor::latest_checkpoint(options.folder);
    fmt::print(
        "{}\n",
        last ? "resumes from " + *last
             : "no checkpoint in " + options.folder + ": starts at step 0");
    std::fflush(stdout);
  }
  const auto result = training::train(options, text, progress);
  if (!is_first) {
    return 0;
  }
  if (result.losses.empty()) {
    fmt::print(
        "step {} of {} is done: nothing to do\n",
        result.first_step,
        options.steps);
    return 0;
  }
  for (const auto& [step, loss] : result.evaluations) {
    fmt::print("held out, step {}: {:.4f}\n", step, loss);
  }
  print_end(options, result);
  if (!svg.empty()) {
    std::ofstream(svg) << training::loss_curve_svg(result);
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  options.model.dropout = 0;
  std::string path, svg;
  bool checks = false;
  CLI::App app("Trains a GPT with data, fully sharded and tensor parallelism.");
  add_options(app, options);
  app.add_option("--text", path, "text file to train on");
  app.add_option("--svg", svg, "SVG file for the loss curve");
  app.add_flag("--check", checks, "compare parallel layouts of a small run");
  try {
    app.parse(argc, argv);
    check_options(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  try {
    const auto text = gpt::read_text(path);
    if (checks) {
      return check(text);
    }
    options.model.vocab = text.vocab();
    return run(options, text, svg);
  } catch (const c10::Error& error) {
    fmt::print(stderr, "{}\n", error.what_without_backtrace());
  } catch (const std::exception& error) { // from the file system
    fmt::print(stderr, "{}\n", error.what());
  }
  return 1;
}
