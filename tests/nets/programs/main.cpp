// SPDX-License-Identifier: BSD-3-Clause
// dtensor_programs: runs random programs on DTensors and on plain tensors, and
// compares them after each step. See program.h.
//
//   dtensor_programs --seed 1 --cases 300     what ctest runs
//   dtensor_programs --seed 4711 --cases 1    one program again
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <tests/command_line.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include <unistd.h>

#include "program.h"
#include "trial.h"

namespace dtensor::programs {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t cases = 300;
  bool verbose = false;
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
  std::map<std::string, int64_t> kinds;
};

void run_one(uint64_t seed, const Options& options, Tally& tally) {
  const auto text = "crashed in the program of seed " + std::to_string(seed);
  text.copy(running_text, sizeof(running_text) - 2);
  running_text[text.size()] = '\n';
  const auto program = draw_program(seed);
  if (options.verbose) {
    std::cout << program.text() << std::flush;
  }
  if (program.steps.size() < 5) {
    ++tally.skipped;
    return;
  }
  const auto verdict = try_program(program);
  for (const auto& [kind, count] : verdict.refused) {
    tally.kinds[kind] += count;
  }
  if (verdict.different) {
    ++tally.different;
    const auto shorter = shrink(program);
    std::cout << "DIFFERENT " << shorter.text() << "  "
              << try_program(shorter).why << std::endl;
  } else {
    ++(verdict.refused.empty() ? tally.equal : tally.refused);
  }
}

int report(const Tally& tally, int64_t cases) {
  std::cout << "programs: " << cases << " programs: " << tally.equal
            << " equal, " << tally.refused << " refused (";
  const char* between = "";
  for (const auto& [kind, count] : tally.kinds) {
    std::cout << between << kind << ": " << count;
    between = ", ";
  }
  std::cout << "), " << tally.skipped << " skipped, " << tally.different
            << " different\n";
  return tally.different == 0 ? 0 : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Random programs against plain tensors");
  app.add_option("--seed", options.seed, "Of the first case");
  app.add_option("--cases", options.cases, "How many");
  app.add_flag("--verbose", options.verbose, "Print each case");
  test::parse_or_exit(app, argc, argv);
  return options;
}

} // namespace
} // namespace dtensor::programs

int main(int argc, char** argv) {
  using namespace dtensor::programs;
  at::set_num_threads(1);
  std::signal(SIGSEGV, on_crash);
  std::signal(SIGABRT, on_crash);
  std::signal(SIGFPE, on_crash);
  const auto options = parse(argc, argv);
  Tally tally;
  for (int64_t i = 0; i < options.cases; ++i) {
    run_one(options.seed + static_cast<uint64_t>(i), options, tally);
  }
  return report(tally, options.cases);
}
