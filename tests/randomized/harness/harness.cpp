// SPDX-License-Identifier: BSD-3-Clause
#include "harness.h"

#include <c10/util/Exception.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <iostream>

namespace dtensor::randomized {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks that wait for each other end earlier, by a timeout of their own.
constexpr unsigned kHangSeconds = 200;
constexpr int64_t kMostSkipped = 1000;

// Text and process of the report of a crash. Signal handlers cannot allocate.
std::array<char, 4096> crash_report{};
size_t crash_report_size = 0;
pid_t watched_process = 0;
std::array<struct sigaction, NSIG> earlier_actions{};

void set_crash_report(const std::string& command) {
  const auto text = "\ncrashed or hung. To repeat the case:\n  " + command;
  crash_report_size = text.copy(crash_report.data(), crash_report.size() - 1);
  crash_report[crash_report_size++] = '\n';
}

// Child processes, which may crash on purpose, print nothing.
void on_crash(int signal) {
  if (getpid() == watched_process) {
    [[maybe_unused]] const auto written =
        write(STDERR_FILENO, crash_report.data(), crash_report_size);
  }
  if (signal == SIGALRM) {
    _exit(1);
  }
  // The handler of a sanitizer, or the default one.
  sigaction(signal, &earlier_actions.at(static_cast<size_t>(signal)), nullptr);
  std::raise(signal);
}

void watch_this_process() {
  watched_process = getpid();
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}) {
    struct sigaction action {};
    action.sa_handler = on_crash;
    sigaction(
        signal, &action, &earlier_actions.at(static_cast<size_t>(signal)));
  }
}

std::string quoted(const std::string& word) {
  const bool is_plain = std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        std::string("-_./=:,+").find(c) != std::string::npos;
  });
  return is_plain ? word : "'" + word + "'";
}

} // namespace

Harness::Harness(std::string name, const std::string& about, int64_t cases)
    : name_(std::move(name)),
      app_(about),
      cases_(cases) {
  app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app_.add_option("--seed", seed_, "Seed of the first case");
  app_.add_option("--cases", cases_, "Number of valid cases");
  app_.add_option("--seconds", seconds_, "Time after which no case begins");
  app_.add_flag("--verbose", verbose_, "Print each case");
  app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

void Harness::parse(int argc, char** argv) {
  test::parse_or_exit(app_, argc, argv);
  for (int i = 0; i < argc; ++i) {
    command_ += quoted(argv[i]) + " ";
  }
}

// The last value of a repeated option counts.
std::string Harness::command_of(uint64_t seed) const {
  return command_ + "--seed " + std::to_string(seed) + " --cases 1";
}

Verdict Harness::run_one(
    const std::function<Case(uint64_t seed)>& draw,
    uint64_t seed) {
  set_crash_report(command_of(seed));
  alarm(kHangSeconds);
  const auto drawn = draw(seed);
  if (verbose_) {
    std::cout << "seed " << seed << ": " << drawn.text << std::endl;
  }
  const auto verdict = drawn.run();
  alarm(0);
  if (verdict.outcome == Outcome::kDifferent) {
    std::cout << "DIFFERENT "
              << (drawn.shrink ? drawn.shrink()
                               : drawn.text + ": " + verdict.why)
              << "\n  " << command_of(seed) << std::endl;
  } else if (verbose_) {
    static constexpr std::array names = {"equal", "refused", "skipped"};
    std::cout << "  " << names.at(static_cast<size_t>(verdict.outcome)) << " "
              << verdict.why << std::endl;
  }
  return verdict;
}

void Harness::run(const std::function<Case(uint64_t seed)>& draw) {
  watch_this_process();
  const auto begin = Clock::now();
  const std::chrono::duration<double> limit(seconds_);
  for (uint64_t seed = seed_; tally_.valid() < cases_; ++seed) {
    if (seconds_ > 0 && Clock::now() - begin > limit) {
      return;
    }
    tally_.add(run_one(draw, seed));
    TORCH_CHECK(
        tally_.valid() > 0 || tally_.skipped < kMostSkipped,
        "no drawn case is valid");
  }
}

void Harness::fail(const std::string& why) {
  std::cout << "DIFFERENT " << why << std::endl;
  ++tally_.different;
}

int Harness::report() const {
  std::cout << name_ << ": " << tally_.text() << std::endl;
  return tally_.different == 0 && tally_.equal > 0 ? 0 : 1;
}

} // namespace dtensor::randomized
