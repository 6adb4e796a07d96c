// SPDX-License-Identifier: BSD-3-Clause
// One run of all ranks of this node, from their start to the last one's end.
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

// What attempts of a job have in common.
struct Job {
  const Options& options;
  Guard& guard;
  Signals& signals;
  Nodes* nodes; // nullptr: there is one
  CoreShares cores;
  JobFacts facts;
};

class Attempt {
 public:
  Attempt(const Job& job, int number)
      : job_(job),
        number_(number),
        processes_(job.guard) {}

  // Returns the outcome on all nodes, when no rank of this one is left.
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  void start(int local);
  bool decided() const;
  // Sleeps until something happens, and does what it asks for.
  void step();
  int timeout() const;
  void hear_signals();
  void reap();
  // The first outcome of this node counts; a failure ends its ranks.
  void conclude(const Outcome& outcome);
  void end_ranks(int signal);
  Outcome failure(const Exit& exit) const;

  const Job& job_;
  const int number_;
  Processes processes_;
  Output output_;
  std::optional<Outcome> mine_;
  std::optional<Outcome> all_;
  std::optional<Clock::time_point> kill_at_;
};

} // namespace launcher
