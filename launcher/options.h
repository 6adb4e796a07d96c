// SPDX-License-Identifier: BSD-3-Clause
// Command line of dtensor-run.
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
  std::string host = "127.0.0.1"; // host of node 0, which serves the store
  uint16_t port = 0;              // 0: any free port
  int max_restarts = 0;
  int grace = 5;          // seconds from SIGTERM to SIGKILL
  int node_timeout = 30;  // seconds until a silent node counts as dead
  int join_timeout = 300; // seconds that other nodes wait for node 0
  bool bind = true;
  bool prefix = true;
  std::string program;              // path of the executable
  std::vector<std::string> command; // as given, with its arguments

  int world_size() const {
    return ranks * nodes;
  }
};

// Error that the user can correct; the launcher exits with code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Parses the command line. If help is requested, prints it and exits.
Options parse_options(int argc, char** argv);

} // namespace launcher
