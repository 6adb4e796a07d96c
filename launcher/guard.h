// SPDX-License-Identifier: BSD-3-Clause
// Guard: a process that lives slightly longer than the launcher. If the
// launcher dies without ending its ranks (SIGKILL), the guard kills their
// process groups. The ranks themselves always die with the launcher
// (processes.cpp), but processes that the ranks have started would not.
#pragma once

#include <sys/types.h>

#include "fd.h"

namespace launcher {

class Guard {
 public:
  // Forks, so the guard must be constructed while the launcher has one thread.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(pid_t group);
  // Call this function before the group's leader is reaped, because the system
  // may then reuse the number.
  void forget(pid_t group);

 private:
  Fd notes_; // pid to watch, or -pid to forget
  pid_t pid_ = -1;
};

} // namespace launcher
