// SPDX-License-Identifier: BSD-3-Clause
#include "guard.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <set>

namespace launcher {
namespace {

// Main loop of the guard process: reads until the launcher's end of the pipe is
// closed.
[[noreturn]] void guard(int notes) {
  std::set<pid_t> groups;
  for (pid_t note = 0; ::read(notes, &note, sizeof(note)) == sizeof(note);) {
    if (note > 0) {
      groups.insert(note);
    } else {
      groups.erase(-note);
    }
  }
  for (const pid_t group : groups) {
    ::kill(-group, SIGKILL);
  }
  ::_exit(0);
}

} // namespace

Guard::Guard() {
  int ends[2];
  checked(
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
      "cannot make a socket");
  const Fd read_end(ends[0]);
  notes_ = Fd(ends[1]);
  pid_ = checked(::fork(), "cannot start a process");
  if (pid_ != 0) {
    return;
  }
  // A new session: signals that end the launcher's process group must not end
  // the guard.
  ::setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "dtensor-guard");
  ::close(notes_.get());
  guard(read_end.get());
}

Guard::~Guard() {
  notes_ = Fd();
  ::waitpid(pid_, nullptr, 0);
}

void Guard::watch(pid_t group) {
  // If the guard has been killed, the job continues without it.
  static_cast<void>(::send(notes_.get(), &group, sizeof(group), MSG_NOSIGNAL));
}

void Guard::forget(pid_t group) {
  watch(-group);
}

} // namespace launcher
