// SPDX-License-Identifier: BSD-3-Clause
// dtensor_op_samples: runs operators on DTensors, and compares with the plain
// operator. The calls come from PyTorch's own samples, or are drawn. See
// README.md beside this file.
//
//   dtensor_op_samples --samples FILE --brief            what ctest runs
//   dtensor_op_samples --samples FILE --jobs 2           all, by hand
//   dtensor_op_samples --samples FILE --only 'aten::cat$' --verbose
//   dtensor_op_samples --drawn --seed 1 --cases 800      what ctest runs
//   dtensor_op_samples --drawn --op view mm --heads      sharded in units
#include "drawn.h"
#include "selection.h"
#include "supervisor.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <tests/randomized/harness/harness.h>
#include <tests/randomized/harness/operators.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>

namespace dtensor::randomized {
namespace {

constexpr int kSkipped = 77; // for ctest
constexpr size_t kCallsOfAWorker = 40;

struct Options {
  std::string samples;
  std::string only;
  std::string pending;
  int64_t number = -1; // index among the operator's calls; negative: all
  size_t jobs = 1;
  bool list = false;
  Settings settings;
  // Options of drawn calls.
  bool is_drawn = false;
  bool heads_only = false;
  std::vector<std::string> ops; // empty: all
};

std::vector<Job> jobs_of(const Options& options) {
  const std::regex only(options.only);
  std::vector<Job> jobs(1);
  for (auto& [name, calls] : calls_of(read_samples(options.samples))) {
    if (calls.empty() || !std::regex_search(name, only)) {
      continue;
    }
    if (options.list) {
      std::cout << name << " " << calls.size() << "\n";
      continue;
    }
    const auto drawn = drawn_in_brief(calls, options.settings);
    for (auto& call : calls) {
      if ((options.number >= 0 &&
           call.number != static_cast<size_t>(options.number)) ||
          (options.settings.brief && drawn.count(call.number) == 0)) {
        continue;
      }
      if (jobs.back().calls.size() == kCallsOfAWorker) {
        jobs.emplace_back();
      }
      jobs.back().calls.push_back(std::move(call));
    }
  }
  return jobs;
}

// Reads lines "aten::name reason"; # begins a comment.
std::set<std::string> read_pending(const std::string& path) {
  std::set<std::string> names;
  std::ifstream file(path);
  TORCH_CHECK_VALUE(file.good(), "cannot read ", path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') {
      names.insert(line.substr(0, line.find(' ')));
    }
  }
  return names;
}

void add_options(CLI::App& app, Options& options) {
  auto& settings = options.settings;
  app.add_option("--samples", options.samples, "File of the samples");
  app.add_option(
      "--only", options.only, "Operators that this regular expression finds");
  app.add_option("--call", options.number, "That call of the operator only");
  app.add_option(
      "--pending",
      options.pending,
      "File of operators that are known to differ");
  app.add_option("--fraction", settings.fraction, "Fraction of the layouts");
  app.add_option(
      "--random", settings.random_layouts, "Random layouts of each call");
  app.add_option("--jobs", options.jobs, "Number of processes");
  app.add_flag("--brief", settings.brief, "Few calls and layouts");
  app.add_flag("--list", options.list, "Print the operators and end");
  app.add_flag("--drawn", options.is_drawn, "Draw calls instead of samples");
  app.add_option("--op", options.ops, "Draw calls of these operators only");
  app.add_flag("--heads", options.heads_only, "Draw tensors with heads only");
}

int run_samples(const Options& options, Harness& harness) {
  if (!std::filesystem::exists(options.samples)) {
    std::cout << "op samples: skipped, there are no samples in \""
              << options.samples << "\"\n";
    return kSkipped;
  }
  auto& tally = SharedTally::make();
  auto jobs = jobs_of(options);
  if (options.list) {
    return 0;
  }
  run_jobs(std::move(jobs), options.jobs, options.settings, tally);
  if (tally.pending > 0) {
    std::cout << tally.pending << " pending" << std::endl;
  }
  harness.tally() = tally.counts();
  return harness.report();
}

int run_drawn(const Options& options, Harness& harness) {
  const auto operators = drawable_operators(options.ops);
  harness.run([&](uint64_t seed) {
    return draw_case(operators, options.heads_only, seed);
  });
  return harness.report();
}

int run(int argc, char** argv) {
  Options options;
  Harness harness("op samples", "Operators against plain operators", 300);
  add_options(harness.app(), options);
  harness.parse(argc, argv);
  options.settings.seed = harness.seed();
  options.settings.verbose = harness.verbose();
  if (!options.pending.empty()) {
    options.settings.pending = read_pending(options.pending);
  }
  return options.is_drawn ? run_drawn(options, harness)
                          : run_samples(options, harness);
}

} // namespace
} // namespace dtensor::randomized

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return dtensor::randomized::run(argc, argv);
}
