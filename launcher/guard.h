// SPDX-License-Identifier: BSD-3-Clause
// A process that outlives the launcher by a moment: where the launcher dies
// without ending its ranks (SIGKILL), it kills their process groups. The ranks
// themselves die with the launcher in any case (processes.cpp); what they have
// started would not.
#pragma once

#include <sys/types.h>

#include "fd.h"

namespace launcher {

class Guard {
 public:
  // Forks: to be made while there is one thread.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(pid_t group);
  // Before the group's leader is reaped, so that its number is not another's.
  void forget(pid_t group);

 private:
  Fd notes_; // a pid, negative to forget it
  pid_t pid_ = -1;
};

} // namespace launcher
