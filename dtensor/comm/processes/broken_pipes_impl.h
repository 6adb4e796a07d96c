// SPDX-License-Identifier: BSD-3-Clause
// What becomes of a process that writes to a rank that has gone.
#pragma once

namespace dtensor::detail {

/// While one lives, SIGPIPE is ignored, where it would end the process: Gloo
/// writes to connections that peers have closed, and is to say so by an error.
/// (Python ignores it in every program.)
class IgnoreBrokenPipes {
 public:
  IgnoreBrokenPipes();
  ~IgnoreBrokenPipes();
  IgnoreBrokenPipes(const IgnoreBrokenPipes&) = delete;
  IgnoreBrokenPipes& operator=(const IgnoreBrokenPipes&) = delete;

  /// Also after the last has gone.
  static void for_good();
};

} // namespace dtensor::detail
