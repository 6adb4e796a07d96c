// SPDX-License-Identifier: BSD-3-Clause
// The processes of the ranks of this host. Each leads a process group, so that
// a signal reaches what it has started too.
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
  std::vector<std::string> arguments;   // the first is its name
  std::vector<std::string> environment; // name=value
  std::vector<int> cpus;                // empty: all
  sigset_t signal_mask = {};
  Fd out; // nothing: the launcher's own
  Fd err;
};

// How a rank ended.
struct Exit {
  int rank = 0; // its number on this host
  int code = 0;
  int signal = 0; // 0: it exited

  bool failed() const {
    return code != 0 || signal != 0;
  }
  // As a shell has it.
  int status() const {
    return signal != 0 ? 128 + signal : code;
  }
  // "exited with code 3", "was killed by signal 9 (Killed)"
  std::string text() const;
};

class Processes {
 public:
  explicit Processes(Guard& guard) : guard_(guard) {}
  // Kills those that run.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void start(int rank, const RankStart& start);
  bool running() const {
    return !ranks_.empty();
  }
  void signal(int signal) const;
  // Those that have ended since, with what is left of their groups.
  std::vector<Exit> reap();

 private:
  Guard& guard_;
  std::map<pid_t, int> ranks_;
};

} // namespace launcher
