// SPDX-License-Identifier: BSD-3-Clause
// The command line of dtensor-run.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace launcher {

struct Options {
  int ranks = 0; // on each node
  int nodes = 1;
  int node = 0;
  std::string host = "127.0.0.1"; // where node 0 has the store
  uint16_t port = 0;              // 0: a free one
  int max_restarts = 0;
  int grace = 5;          // seconds from SIGTERM to SIGKILL
  int node_timeout = 30;  // seconds until a silent node counts as dead
  int join_timeout = 300; // seconds that other nodes wait for node 0
  bool bind = true;
  bool prefix = true;
  std::string program;              // the path of what is run
  std::vector<std::string> command; // as it was given, with its arguments

  int world_size() const {
    return ranks * nodes;
  }
};

// What the user can mend; the launcher exits with 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Prints the help and exits where that is asked for.
Options parse_options(int argc, char** argv);

} // namespace launcher
