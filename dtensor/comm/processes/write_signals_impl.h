// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace dtensor::detail {

/// While one lives, the signals that a write may raise are ignored unless the
/// program handles them, so that the write fails instead of ending the process:
/// SIGPIPE, as Gloo writes to connections that peers have closed, and SIGXFSZ,
/// as `ulimit -f` holds for shared memory too.
/// (Python ignores both in every program.)
class IgnoreWriteSignals {
 public:
  IgnoreWriteSignals();
  ~IgnoreWriteSignals();
  IgnoreWriteSignals(const IgnoreWriteSignals&) = delete;
  IgnoreWriteSignals& operator=(const IgnoreWriteSignals&) = delete;

  /// Also after the last has gone.
  static void for_good();
};

} // namespace dtensor::detail
