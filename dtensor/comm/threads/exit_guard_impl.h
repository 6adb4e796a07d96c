// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace dtensor::detail {

/// Marks that functions run on ranks. While an instance lives, exit(), called
/// by any thread, flushes the streams and ends the process at once, with the
/// status given to exit(). Static destructors would destroy objects that ranks
/// use.
class ExitGuard {
 public:
  /// Registers the exit handlers. Call this function before the first run of
  /// ranks that may be static objects themselves: handlers registered here run
  /// before the destructors of these ranks.
  static void register_after_ranks();

  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

/// While a RankThreadGuard lives, its thread runs a rank's function. If that
/// function calls exit(), the process ends before any destructor of a global
/// runs.
class RankThreadGuard {
 public:
  RankThreadGuard();
  ~RankThreadGuard();
  RankThreadGuard(const RankThreadGuard&) = delete;
  RankThreadGuard& operator=(const RankThreadGuard&) = delete;
};

} // namespace dtensor::detail
