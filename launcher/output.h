// SPDX-License-Identifier: BSD-3-Clause
// Output of the ranks, line by line, as "[2] text".
//
// No call here blocks, because the launcher must handle signals and failures
// while the reader of its output stalls. Text that the reader has not taken
// stays in memory. Above 1 MiB of it, the launcher stops reading from the
// ranks, so their writes block as with a plain pipe.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fd.h"

namespace launcher {

// The launcher's standard output or standard error, and the text to write to
// it.
class Stream {
 public:
  explicit Stream(int fd);

  void append(std::string_view text);
  // Writes as much text as possible without blocking.
  void write();
  int fd() const;
  bool pending() const {
    return !text_.empty();
  }
  // Returns true if so much text is pending that ranks must wait.
  bool full() const;
  // Returns true if the reader has closed its end.
  bool closed() const {
    return closed_;
  }

 private:
  int inherited_;
  Fd own_; // non-blocking; empty if only `inherited_` can be used
  std::string text_;
  bool closed_ = false;
};

// Prints the ranks' output. Lines are kept intact, so lines of different ranks
// never mix. A line longer than 1 MiB is split.
class Output {
 public:
  Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Returns a descriptor for a rank to write to. Its lines go to `target`,
  // which is STDOUT_FILENO or STDERR_FILENO. Once the reader of `target` has
  // closed its end, the rank's writes fail too (SIGPIPE).
  Fd add(int rank, int target);
  // Prints the launcher's own text after the pending text of `target`.
  void print(int target, std::string_view text);
  // Adds the descriptors that can make progress to the descriptors to poll.
  void append_to(std::vector<pollfd>& polled) const;
  // Reads and writes the text that is available now.
  void pump();
  // Reads the remaining text once the ranks have ended, including unterminated
  // last lines. Text that cannot be written yet stays pending.
  void finish();
  // Returns true if there is text to write.
  bool pending() const;

 private:
  struct Source {
    Fd fd;
    Stream& stream;
    std::string prefix;
    std::string rest; // incomplete line
  };

  Stream& stream_of(int target);
  // Returns false if there was no output.
  bool read(Source& source);
  bool read_all();
  void write();

  Stream out_{STDOUT_FILENO};
  // Empty if standard error is the same file as standard output. Then one
  // stream keeps the lines of both intact.
  std::optional<Stream> err_;
  std::list<Source> sources_;
};

} // namespace launcher
