// SPDX-License-Identifier: BSD-3-Clause
#include "attempt.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

namespace launcher {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

} // namespace

Outcome Attempt::run() {
  for (int local = 0; local < job_.options.ranks; ++local) {
    start(local);
  }
  while (processes_.running() || !decided()) {
    step();
  }
  job_.output.finish();
  return *all_;
}

void Attempt::start(int local) {
  const auto& options = job_.options;
  RankStart start;
  start.program = options.program;
  start.arguments = options.command;
  start.environment = environment_of(options, job_.facts, number_, local);
  start.signal_mask = job_.signals.mask_before();
  start.on_broken_pipe = job_.signals.on_broken_pipe_before();
  if (options.bind && !job_.cores.cpus.empty()) {
    start.cpus = job_.cores.cpus[static_cast<size_t>(local)];
  }
  if (options.prefix) {
    const int rank = options.node * options.ranks + local;
    start.out = job_.output.add(rank, STDOUT_FILENO);
    start.err = job_.output.add(rank, STDERR_FILENO);
  }
  processes_.start(local, start);
}

bool Attempt::decided() const {
  return all_.has_value();
}

void Attempt::step() {
  std::vector<pollfd> polled = {{job_.signals.fd(), POLLIN, 0}};
  if (job_.nodes != nullptr) {
    polled.push_back({job_.nodes->news(), POLLIN, 0});
  }
  job_.output.append_to(polled);
  ::poll(polled.data(), polled.size(), timeout());
  job_.output.pump();
  handle_signals();
  reap();
  if (!decided()) {
    all_ = job_.nodes != nullptr ? job_.nodes->outcome() : mine_;
    if (decided() && all_->code != 0 && !kill_at_) {
      end_ranks(SIGTERM);
    }
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    processes_.signal(SIGKILL);
  }
}

// Returns the poll() timeout in milliseconds: until the end of the grace
// period, and at most one second if there are other nodes, because their
// silence raises no event.
int Attempt::timeout() const {
  using std::chrono::milliseconds;
  auto wait = milliseconds(job_.nodes != nullptr ? 1000 : -1);
  if (kill_at_ && processes_.running()) {
    const auto left = std::chrono::ceil<milliseconds>(*kill_at_ - Clock::now());
    // SIGCHLD follows once the ranks are killed.
    wait = std::clamp(left, milliseconds(10), milliseconds(1000));
  }
  return static_cast<int>(wait.count());
}

void Attempt::handle_signals() {
  for (const int signal : job_.signals.take()) {
    const auto text = fmt::format(
        "received signal {} ({}) on {}. The ranks were terminated.",
        signal,
        ::strsignal(signal),
        host_name());
    end_ranks(signal);
    conclude({128 + signal, false, text});
  }
}

void Attempt::reap() {
  const auto ended = processes_.reap();
  // If several ranks ended at once, a crashed rank is the more likely cause:
  // its peers exit as a consequence.
  const auto first = std::max_element(
      ended.begin(), ended.end(), [](const Exit& a, const Exit& b) {
        return std::pair(a.signal != 0, a.failed()) <
            std::pair(b.signal != 0, b.failed());
      });
  if (first != ended.end() && first->failed()) {
    conclude(failure(*first));
  } else if (!processes_.running()) {
    conclude({});
  }
}

void Attempt::conclude(const Outcome& outcome) {
  if (mine_) {
    return;
  }
  mine_ = outcome;
  if (job_.nodes != nullptr) {
    job_.nodes->report(outcome);
  }
  if (outcome.code != 0 && !kill_at_) {
    end_ranks(SIGTERM);
  }
}

void Attempt::end_ranks(int signal) {
  processes_.signal(signal);
  if (!kill_at_) {
    kill_at_ = Clock::now() + std::chrono::seconds(job_.options.grace);
  }
}

Outcome Attempt::failure(const Exit& exit) const {
  const auto& options = job_.options;
  return {
      exit.status(),
      true,
      fmt::format(
          "rank {} on {} {}.{}",
          options.node * options.ranks + exit.rank,
          host_name(),
          exit.text(),
          options.world_size() > 1 ? " The other ranks were terminated." : "")};
}

} // namespace launcher
