// SPDX-License-Identifier: BSD-3-Clause
// Processes: the ranks of this host. Each rank leads a process group, so that
// signals also reach the processes that it has started.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "fd.h"
#include "guard.h"

namespace launcher {

struct RankStart {
  std::string program;
  std::vector<std::string> arguments;   // argv, including argv[0]
  std::vector<std::string> environment; // name=value
  std::vector<int> cpus;                // empty: all CPUs
  sigset_t signal_mask = {};
  sighandler_t on_broken_pipe = SIG_DFL; // or SIG_IGN, for SIGPIPE
  Fd out;                                // empty: the launcher's own
  Fd err;
};

// Result of a rank.
struct Exit {
  int rank = 0; // local rank
  int code = 0;
  int signal = 0; // 0 if the rank exited

  bool failed() const {
    return code != 0 || signal != 0;
  }
  // Returns the status as a shell reports it.
  int status() const {
    return signal != 0 ? 128 + signal : code;
  }
  // Returns "exited with code 3" or "was killed by signal 9 (Killed)".
  std::string text() const;
};

class Processes {
 public:
  explicit Processes(Guard& guard) : guard_(guard) {}
  // Kills the ranks that still run.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void start(int rank, const RankStart& start);
  bool running() const {
    return !ranks_.empty();
  }
  void signal(int signal) const;
  // Returns the ranks that have ended since the last call. Kills the remaining
  // processes of their groups.
  std::vector<Exit> reap();

 private:
  Guard& guard_;
  std::map<pid_t, int> ranks_;
};

} // namespace launcher
