// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace dtensor::detail {

/// While it lives, functions run on ranks: exit(), by any thread, then ends the
/// process with its status at once. Destructors of static objects would take
/// away what ranks use. Streams are flushed.
class ExitGuard {
 public:
  /// Before the first run of ranks that may be static objects themselves: they
  /// are destroyed after what is registered here has run.
  static void register_after_ranks();

  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

} // namespace dtensor::detail
