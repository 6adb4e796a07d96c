// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace dtensor::detail {

/// Ignores the signals that a write may raise for as long as an instance lives,
/// unless the program handles them. The write then fails instead of ending the
/// process. The signals are SIGPIPE, since Gloo writes to connections that
/// peers have closed, and SIGXFSZ, since `ulimit -f` applies to shared memory
/// too. (Python ignores both in every program.)
class IgnoreWriteSignals {
 public:
  IgnoreWriteSignals();
  ~IgnoreWriteSignals();
  IgnoreWriteSignals(const IgnoreWriteSignals&) = delete;
  IgnoreWriteSignals& operator=(const IgnoreWriteSignals&) = delete;

  /// Keeps the signals ignored even after the last instance is destroyed.
  static void for_good();
};

} // namespace dtensor::detail
