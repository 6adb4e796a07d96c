// SPDX-License-Identifier: BSD-3-Clause
// Output of the ranks, line by line, as "[2] text".
#pragma once

#include <poll.h>

#include <list>
#include <string>
#include <vector>

#include "fd.h"

namespace launcher {

// Prints the ranks' output. Lines are written atomically, so lines of different
// ranks never mix. A line longer than 1 MiB is split.
class Output {
 public:
  // Returns a descriptor for a rank to write to. Its lines go to `target`.
  Fd add(int rank, int target);
  // Adds the open read ends to the descriptors to poll.
  void append_to(std::vector<pollfd>& polled) const;
  // Prints the available output without blocking. Returns false if there was no
  // output.
  bool pump();
  // Prints the remaining output once the ranks have ended, including
  // unterminated last lines.
  void finish();

 private:
  struct Source {
    Fd fd;
    int target = 0;
    std::string prefix;
    std::string rest; // incomplete line
  };

  bool pump(Source& source);

  std::list<Source> sources_;
};

} // namespace launcher
