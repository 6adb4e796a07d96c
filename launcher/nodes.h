// SPDX-License-Identifier: BSD-3-Clause
// Nodes: agreement of the launchers of several nodes on the end of a job.
//
// Every launcher reports how the ranks of its node ended. The outcome for all
// nodes is the first failure, or success if all nodes succeed. Launchers send
// heartbeats by incrementing a key, and node 0 ends the job if a heartbeat
// stops. A launcher that cannot reach the store treats node 0 as dead.
//
// A separate thread makes the calls of the store. A lost host blocks such a
// call, and meanwhile the launcher must print output and handle signals.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "store.h"

namespace launcher {

// Result of an attempt to run the job.
struct Outcome {
  int code = 0;       // 0: every rank of every node exited with 0
  bool again = false; // true if a restart may help
  std::string text;   // description of the event and the rank

  bool operator==(const Outcome&) const = default;
};

class Nodes {
 public:
  // `timeout` is the silence after which a node counts as dead.
  Nodes(
      std::shared_ptr<Store> store,
      int node,
      int nodes,
      std::chrono::seconds timeout);
  // Node 0 waits until the others have read the outcome, at most five seconds.
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  // Returns a descriptor that becomes readable when there may be an outcome.
  int news() const;
  void begin(int attempt);
  // Reports the outcome of this node's ranks in this attempt. Only the first
  // report counts.
  void report(const Outcome& outcome);
  // Returns the outcome of all nodes; nullopt until it is decided.
  std::optional<Outcome> outcome();

 private:
  // State shared with the thread, which may outlive this object.
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

} // namespace launcher
