// SPDX-License-Identifier: BSD-3-Clause
#include "signals.h"

#include <sys/signalfd.h>

namespace launcher {

Signals::Signals() : on_broken_pipe_before_(std::signal(SIGPIPE, SIG_IGN)) {
  // An inherited SIG_IGN would prevent SIGCHLD, and the children could not be
  // waited for.
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {
      sigaddset(&taken, signal);
    }
  }
  pthread_sigmask(SIG_BLOCK, &taken, &before_);
  fd_ = Fd(checked(
      ::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK),
      "cannot receive signals"));
}

Signals::~Signals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  std::signal(SIGPIPE, on_broken_pipe_before_);
}

std::vector<int> Signals::take() {
  std::vector<int> signals;
  signalfd_siginfo info = {};
  while (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) {
      signals.push_back(static_cast<int>(info.ssi_signo));
    }
  }
  received_ = received_ || !signals.empty();
  return signals;
}

} // namespace launcher
