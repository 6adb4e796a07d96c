// SPDX-License-Identifier: BSD-3-Clause
// What ranks print, line by line: "[2] text".
#pragma once

#include <poll.h>

#include <list>
#include <string>
#include <vector>

#include "fd.h"

namespace launcher {

// Lines are written whole, so those of different ranks never mix. One longer
// than 1 MiB comes in pieces.
class Output {
 public:
  // A descriptor for a rank to write to; its lines go to `target`.
  Fd add(int rank, int target);
  // What to wait for: the ends that are open.
  void append_to(std::vector<pollfd>& polled) const;
  // Prints what has come, without waiting. False if nothing has.
  bool pump();
  // When the ranks have ended: the rest, and last lines without an end.
  void finish();

 private:
  struct Source {
    Fd fd;
    int target = 0;
    std::string prefix;
    std::string rest; // the begin of a line
  };

  bool pump(Source& source);

  std::list<Source> sources_;
};

} // namespace launcher
