// SPDX-License-Identifier: BSD-3-Clause
// dtensor_op_samples: runs every operator that PyTorch's own samples call on
// DTensors, and compares with the plain operator. See README.md beside this
// file.
//
//   dtensor_op_samples --samples FILE --brief            what ctest runs
//   dtensor_op_samples --samples FILE --jobs 2           all, by hand
//   dtensor_op_samples --samples FILE --only 'aten::cat$' --verbose
#include "meeting.h"
#include "selection.h"
#include "worker.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <tests/command_line.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <thread>

namespace dtensor::nets {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSkipped = 77; // for ctest
constexpr size_t kCallsOfAWorker = 40;
constexpr auto kHangs = std::chrono::seconds(60);

struct Options {
  std::string samples;
  std::string only;
  std::string pending;
  int64_t number = -1; // index among the operator's calls; negative: all
  size_t jobs = 1;
  bool list = false;
  Settings settings;
};

struct Job {
  std::vector<Call> calls;
  Place begin;
};

// A worker process and its current place.
struct Running {
  Job job;
  pid_t pid = 0;
  uint64_t beats = 0;
  Clock::time_point since;
};

pid_t start(
    const Running& running,
    const Options& options,
    Tally& tally,
    size_t slot) {
  const auto pid = ::fork();
  TORCH_CHECK(pid >= 0, "cannot fork");
  if (pid > 0) {
    return pid;
  }
  if (!options.settings.verbose) { // samples cause LibTorch warnings
    TORCH_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
  }
  try {
    work(
        running.job.calls,
        running.job.begin,
        options.settings,
        tally,
        tally.workers[slot]);
  } catch (const std::exception& e) {
    print_line(std::string("worker failed: ") + e.what());
    ::_exit(1);
  }
  ::_exit(0);
}

// Returns the remaining job after a worker ended at `place`.
Job after(Job job, const Place& place) {
  if (place.mesh < 0) {
    job.calls.erase(job.calls.begin() + place.call);
    job.begin.call -= place.call < job.begin.call;
    return job;
  }
  job.begin = place;
  ++job.begin.combination;
  return job;
}

class Supervisor {
 public:
  Supervisor(std::vector<Job> jobs, const Options& options, Tally& tally)
      : jobs_(std::move(jobs)),
        options_(options),
        tally_(tally),
        running_(std::min(options.jobs, tally.workers.size())) {
    std::reverse(jobs_.begin(), jobs_.end());
  }

  void run() {
    while (any_left()) {
      for (size_t slot = 0; slot < running_.size(); ++slot) {
        look_after(slot);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  bool any_left() const {
    bool any = !jobs_.empty();
    for (const auto& running : running_) {
      any |= running.pid != 0;
    }
    return any;
  }

  void look_after(size_t slot) {
    auto& running = running_[slot];
    if (running.pid == 0) {
      if (!jobs_.empty()) {
        running.job = std::move(jobs_.back());
        jobs_.pop_back();
        begin(slot);
      }
      return;
    }
    int status = 0;
    if (::waitpid(running.pid, &status, WNOHANG) == running.pid) {
      running.pid = 0;
      if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        ended_badly(slot, status);
      }
      return;
    }
    const uint64_t beats = tally_.workers[slot].beats;
    if (beats != running.beats) {
      running.beats = beats;
      running.since = Clock::now();
    } else if (Clock::now() - running.since > kHangs) {
      ::kill(running.pid, SIGKILL);
      running.since = Clock::now();
    }
  }

  void begin(size_t slot) {
    auto& running = running_[slot];
    running.since = Clock::now();
    running.pid = start(running, options_, tally_, slot);
  }

  void ended_badly(size_t slot, int status) {
    auto& job = running_[slot].job;
    const auto place = tally_.workers[slot].place();
    const auto& call = job.calls.at(static_cast<size_t>(place.call));
    const auto how = WIFSIGNALED(status)
        ? c10::str("ended by signal ", ::strsignal(WTERMSIG(status)))
        : c10::str("ended with status ", WEXITSTATUS(status));
    if (place.mesh < 0) {
      print_line(c10::str("plain ", call.name(), " #", call.number, " ", how));
      ++tally_.skipped;
    } else {
      report_different(
          call,
          c10::str(
              "mesh (",
              c10::Join(", ", meshes()[static_cast<size_t>(place.mesh)]),
              ") | combination ",
              place.combination),
          how,
          options_.settings,
          tally_);
    }
    job = after(std::move(job), place);
    begin(slot);
  }

  std::vector<Job> jobs_; // the last is the next one
  const Options& options_;
  Tally& tally_;
  std::vector<Running> running_;
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

Options parse(int argc, char** argv) {
  Options options;
  auto& settings = options.settings;
  CLI::App app("Sample inputs of LibTorch's own tests");
  app.add_option("--samples", options.samples, "File of the samples");
  app.add_option(
      "--only", options.only, "Operators that this regular expression finds");
  app.add_option("--call", options.number, "That call of the operator only");
  app.add_option(
      "--pending",
      options.pending,
      "File of operators that are known to differ");
  app.add_option("--seed", settings.seed, "Of the layouts");
  app.add_option("--fraction", settings.fraction, "How many of the calls");
  app.add_option(
      "--random", settings.random_layouts, "Random layouts of each call");
  app.add_option("--jobs", options.jobs, "Processes");
  app.add_flag("--brief", settings.brief, "Without the refusals");
  app.add_flag("--verbose", settings.verbose, "Print each call");
  app.add_flag("--list", options.list, "Print the operators and end");
  test::parse_or_exit(app, argc, argv);
  if (!options.pending.empty()) {
    settings.pending = read_pending(options.pending);
  }
  return options;
}

int run(const Options& options) {
  if (!std::filesystem::exists(options.samples)) {
    std::cout << "op samples: skipped, there are no samples in \""
              << options.samples << "\"\n";
    return kSkipped;
  }
  auto& tally = Tally::make();
  auto jobs = jobs_of(options);
  if (options.list) {
    return 0;
  }
  Supervisor(std::move(jobs), options, tally).run();
  print_line("op samples: " + tally.text());
  return tally.different == 0 && tally.equal > 0 ? 0 : 1;
}

} // namespace
} // namespace dtensor::nets

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return dtensor::nets::run(dtensor::nets::parse(argc, argv));
}
