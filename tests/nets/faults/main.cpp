// SPDX-License-Identifier: BSD-3-Clause
// dtensor_faults: in each run, one rank fails at a random point of a training
// step. run_ranks must name the rank, no rank may wait until the timeout, and
// nothing may be leaked: no thread, no spec, no memory.
//
//   dtensor_faults --seed 1 --cases 300       what ctest runs
//   dtensor_faults --seed 2 --cases 500 --verbose
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <dtensor/layout/spec.h>
#include <tests/command_line.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include "fault.h"

namespace dtensor::faults {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t cases = 300;
  bool verbose = false;
};

int64_t threads() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// Returns the resident memory of the process in KB.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t size = 0;
  while (status >> word) {
    if (word == "VmRSS:") {
      status >> size;
    }
  }
  return size;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {
    for (const int64_t ranks : {2, 3}) {
      points_[ranks] = count_points(ranks);
    }
  }

  Fault operator()() {
    Fault fault;
    fault.ranks = 2 + below(2);
    fault.rank = below(fault.ranks);
    fault.kind = static_cast<Kind>(below(kKinds));
    // Points after the last collective are excluded, because no rank waits for
    // another there.
    const Points& points = points_[fault.ranks];
    fault.point = below(points.last_collective + 1);
    return fault;
  }

 private:
  // Returns the same number on every system, unlike the standard distributions.
  int64_t below(int64_t n) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n));
  }

  std::mt19937_64 engine_;
  std::map<int64_t, Points> points_;
};

struct Tally {
  int64_t named = 0;
  int64_t unnamed = 0;
  int64_t waited = 0;
  int64_t left = 0;
};

// True if the second half of the runs leaks no memory; the first half has
// filled the caches. A leak of 2 KB per run would matter in a long program.
bool memory_is_flat(int64_t grown, int64_t runs) {
  const bool flat = grown <= 2048 + 2 * runs;
  if (!flat) {
    std::cout << runs << " runs left " << grown << " KB" << std::endl;
  }
  return flat;
}

Tally run(const Options& options) {
  const Objects ended = of_ended_ranks();
  Draw draw(options.seed);
  const int64_t specs = static_cast<int64_t>(live_specs());
  const int64_t threads_before = threads();
  const int64_t half = options.cases / 2;
  int64_t memory = 0;
  Tally tally;
  for (int64_t i = 0; i < options.cases; ++i) {
    memory = i == half ? resident() : memory;
    const Fault fault = draw();
    const std::string error = run_with(fault, ended);
    const bool is_named = names(error, fault);
    ++(waited(error) ? tally.waited : is_named ? tally.named : tally.unnamed);
    if (!is_named || waited(error) || options.verbose) {
      std::cout << fault.text() << ":\n  "
                << (error.empty() ? "no error" : error) << std::endl;
    }
    const auto specs_now = static_cast<int64_t>(live_specs());
    if (specs_now != specs || threads() != threads_before) {
      ++tally.left;
      std::cout << fault.text() << " left " << specs_now - specs
                << " specs and " << threads() - threads_before << " threads"
                << std::endl;
    }
  }
  tally.left += !memory_is_flat(resident() - memory, options.cases - half);
  return tally;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Training steps with a fault at a random point");
  app.add_option("--seed", options.seed, "Of the first case");
  app.add_option("--cases", options.cases, "How many");
  app.add_flag("--verbose", options.verbose, "Print each case");
  test::parse_or_exit(app, argc, argv);
  return options;
}

} // namespace
} // namespace dtensor::faults

int main(int argc, char** argv) {
  using namespace dtensor::faults;
  const Options options = parse(argc, argv);
  const Tally tally = run(options);
  std::cout << "faults: " << options.cases << " runs: " << tally.named
            << " named, " << tally.unnamed << " unnamed, " << tally.waited
            << " waited, " << tally.left << " left something behind"
            << std::endl;
  return tally.unnamed + tally.waited + tally.left == 0 ? 0 : 1;
}
