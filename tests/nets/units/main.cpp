// SPDX-License-Identifier: BSD-3-Clause
// dtensor_units: trains random models with sharded parameters or averaged
// gradients, and compares with the plain model. See plan.h.
//
//   dtensor_units --seed 1 --cases 60     what ctest runs
//   dtensor_units --seed 4711 --cases 1   one model again
#include <ATen/Parallel.h>
#include <tests/command_line.h>

#include <csignal>
#include <iostream>
#include <map>
#include <string>

#include <unistd.h>

#include "trial.h"

namespace dtensor::units {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t cases = 60;
  bool verbose = false;
  bool shrinks = true;
};

// The running case, for the report of a crash.
char running_text[64];

void on_crash(int signal) {
  const auto size = write(2, running_text, sizeof(running_text));
  static_cast<void>(size);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct Tally {
  int64_t equal = 0;
  int64_t refused = 0;
  int64_t skipped = 0;
  int64_t different = 0;
  std::map<std::string, int64_t> refused_by;
};

void run_one(uint64_t seed, const Options& options, Tally& tally) {
  const auto text = "crashed with the model of seed " + std::to_string(seed);
  text.copy(running_text, sizeof(running_text) - 2);
  running_text[text.size()] = '\n';
  const auto plan = draw_plan(seed);
  if (options.verbose) {
    std::cout << plan.text() << std::flush;
  }
  const auto verdict = try_plan(plan);
  if (options.verbose) {
    std::cout << verdict.where << verdict.why << std::endl;
  }
  switch (verdict.outcome) {
    case Outcome::kEqual:
      ++tally.equal;
      break;
    case Outcome::kRefused:
      ++tally.refused;
      ++tally.refused_by[verdict.where];
      break;
    case Outcome::kSkipped:
      ++tally.skipped;
      break;
    case Outcome::kDifferent:
      ++tally.different;
      const auto less = options.shrinks ? shrink(plan) : plan;
      std::cout << "DIFFERENT " << less.text() << "  " << try_plan(less).why
                << std::endl;
  }
}

int report(const Tally& tally, int64_t cases) {
  std::string kinds;
  for (const auto& [where, count] : tally.refused_by) {
    kinds += (kinds.empty() ? "" : ", ") + where + ": " + std::to_string(count);
  }
  std::cout << "units: " << cases << " models: " << tally.equal << " equal, "
            << tally.refused << " refused"
            << (kinds.empty() ? "" : " (" + kinds + ")") << ", "
            << tally.skipped << " skipped, " << tally.different
            << " different\n";
  return tally.different == 0 && tally.equal > 0 ? 0 : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Drawn models in parts against plain ones");
  app.add_option("--seed", options.seed, "Of the first case");
  app.add_option("--cases", options.cases, "How many");
  app.add_flag("--verbose", options.verbose, "Print each case");
  app.add_flag("!--no-shrink", options.shrinks, "Print cases as they are");
  test::parse_or_exit(app, argc, argv);
  return options;
}

} // namespace
} // namespace dtensor::units

int main(int argc, char** argv) {
  using namespace dtensor::units;
  at::set_num_threads(1);
  std::signal(SIGSEGV, on_crash);
  std::signal(SIGABRT, on_crash);
  const auto options = parse(argc, argv);
  Tally tally;
  for (int64_t i = 0; i < options.cases; ++i) {
    run_one(options.seed + static_cast<uint64_t>(i), options, tally);
  }
  return report(tally, options.cases);
}
