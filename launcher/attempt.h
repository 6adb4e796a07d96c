// SPDX-License-Identifier: BSD-3-Clause
// Attempt: one run of all ranks of this node, from their start to the end of
// the last rank.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "cores.h"
#include "environment.h"
#include "guard.h"
#include "nodes.h"
#include "options.h"
#include "output.h"
#include "processes.h"
#include "signals.h"

namespace launcher {

// State shared by all attempts of a job.
struct Job {
  const Options& options;
  Guard& guard;
  Signals& signals;
  Output& output;
  Nodes* nodes; // nullptr if there is one node
  CoreShares cores;
  JobFacts facts;
};

class Attempt {
 public:
  Attempt(const Job& job, int number)
      : job_(job),
        number_(number),
        processes_(job.guard) {}

  // Runs all ranks of this node to their end. Returns the outcome on all nodes.
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  void start(int local);
  bool decided() const;
  // Waits for an event and handles it.
  void step();
  int timeout() const;
  void handle_signals();
  void reap();
  // Records the outcome of this node; only the first call has an effect. A
  // failure ends this node's ranks.
  void conclude(const Outcome& outcome);
  void end_ranks(int signal);
  Outcome failure(const Exit& exit) const;

  const Job& job_;
  const int number_;
  Processes processes_;
  std::optional<Outcome> mine_;
  std::optional<Outcome> all_;
  std::optional<Clock::time_point> kill_at_;
};

} // namespace launcher
