// SPDX-License-Identifier: BSD-3-Clause
// The signals of a job as events: what came is read from a descriptor.
#pragma once

#include <csignal>
#include <vector>

#include "fd.h"

namespace launcher {

// Blocks SIGCHLD and, unless they are ignored (nohup), SIGINT, SIGTERM and
// SIGHUP in this thread and those that it starts.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const {
    return fd_.get();
  }
  // What has come since, without SIGCHLD.
  std::vector<int> take();
  // The mask from before, for the ranks.
  const sigset_t& mask_before() const {
    return before_;
  }

 private:
  sigset_t before_ = {};
  Fd fd_;
};

// Signals are for the launcher's own thread: others are made under this. For
// the store's server it is needed, since SIGPIPE, from a rank that has died,
// would be the end of it.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~AllSignalsBlocked() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_ = {};
};

} // namespace launcher
