// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace dtensor::detail {

/// While an ExitGuard lives, functions run on ranks. exit(), called by any
/// thread, then flushes the streams and ends the process with its status at
/// once: static destructors would destroy objects that ranks use.
class ExitGuard {
 public:
  /// Call it before the first run of ranks that may be static objects
  /// themselves: handlers registered here run before their destructors.
  static void register_after_ranks();

  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

/// While a RankThreadGuard lives, its thread runs a rank's function. exit() in
/// that function ends the process before any destructor of a global.
class RankThreadGuard {
 public:
  RankThreadGuard();
  ~RankThreadGuard();
  RankThreadGuard(const RankThreadGuard&) = delete;
  RankThreadGuard& operator=(const RankThreadGuard&) = delete;
};

} // namespace dtensor::detail
