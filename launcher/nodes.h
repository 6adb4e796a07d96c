// SPDX-License-Identifier: BSD-3-Clause
// How the launchers of several nodes agree on the end of a job.
//
// Every launcher reports how the ranks of its node ended; the first failure, or
// else the success of all nodes, is the outcome for all. Launchers show that
// they live by counting a key up, and node 0 ends the job when one of them
// stops; one that cannot reach the store takes node 0 for dead.
//
// A thread does this, the only one that the launcher itself has: a lost host
// leaves a call on the store waiting, and meanwhile output must be printed and
// signals heard.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "store.h"

namespace launcher {

// How an attempt to run the job ended.
struct Outcome {
  int code = 0;       // 0: every rank of every node exited with 0
  bool again = false; // whether starting it again may help
  std::string text;   // what happened, and to whom

  bool operator==(const Outcome&) const = default;
};

class Nodes {
 public:
  // Who is silent for `timeout` counts as dead.
  Nodes(
      std::shared_ptr<Store> store,
      int node,
      int nodes,
      std::chrono::seconds timeout);
  // Node 0 stays until the others have read the outcome, or five seconds.
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  // A descriptor that is readable when there may be an outcome.
  int news() const;
  void begin(int attempt);
  // Of this node's ranks, in this attempt; the first report counts.
  void report(const Outcome& outcome);
  // Of all nodes, as soon as it is known.
  std::optional<Outcome> outcome();

 private:
  // Outlives this object where its thread does.
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

} // namespace launcher
