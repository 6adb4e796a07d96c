// SPDX-License-Identifier: BSD-3-Clause
// Signals of a job, delivered as events on a descriptor.
#pragma once

#include <csignal>
#include <vector>

#include "fd.h"

namespace launcher {

// Blocks SIGCHLD in this thread and the threads that it starts. Does the same
// for SIGINT, SIGTERM and SIGHUP unless they are ignored (nohup). Ignores
// SIGPIPE, so that a write to a closed pipe returns an error.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const {
    return fd_.get();
  }
  // Returns the signals received since the last call, without SIGCHLD.
  std::vector<int> take();
  // Returns true if take() has ever returned a signal.
  bool received() const {
    return received_;
  }
  // Returns the signal mask from before, which the ranks inherit.
  const sigset_t& mask_before() const {
    return before_;
  }
  // Returns the action for SIGPIPE from before, which the ranks inherit.
  sighandler_t on_broken_pipe_before() const {
    return on_broken_pipe_before_;
  }

 private:
  sigset_t before_ = {};
  sighandler_t on_broken_pipe_before_;
  Fd fd_;
  bool received_ = false;
};

// Blocks all signals while an instance lives. Other threads are created under
// it, so that signals reach the launcher's main thread only. The store's server
// thread requires this, because a SIGPIPE after the death of a rank would end
// the server.
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
