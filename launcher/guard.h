// SPDX-License-Identifier: BSD-3-Clause
// Guard: a process that outlives the launcher by a moment. If the launcher dies
// without ending its ranks (SIGKILL), the guard kills their process groups. The
// ranks themselves die with the launcher in any case (processes.cpp); processes
// that they have started would not.
#pragma once

#include <sys/types.h>

#include "fd.h"

namespace launcher {

class Guard {
 public:
  // Forks, so it must be constructed while the launcher has one thread.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(pid_t group);
  // Call it before the group's leader is reaped: afterwards the system may
  // reuse the number.
  void forget(pid_t group);

 private:
  Fd notes_; // pid to watch, or -pid to forget
  pid_t pid_ = -1;
};

} // namespace launcher
