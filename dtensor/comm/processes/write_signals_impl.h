// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/api.h>

namespace dtensor::detail {

/// Ignores the signals that a write may raise for as long as an instance lives,
/// unless the program handles these signals. The write then fails instead of
/// ending the process. The signals are SIGPIPE and SIGXFSZ. Gloo writes to
/// connections that peers have closed, which raises SIGPIPE. A write beyond
/// `ulimit -f` raises SIGXFSZ, in shared memory too. (Python ignores both
/// signals in every program.)
class DTENSOR_INTERNAL_API IgnoreWriteSignals {
 public:
  IgnoreWriteSignals();
  ~IgnoreWriteSignals();
  IgnoreWriteSignals(const IgnoreWriteSignals&) = delete;
  IgnoreWriteSignals& operator=(const IgnoreWriteSignals&) = delete;

  /// Keeps the signals ignored even after the last instance is destroyed.
  static void for_good();
};

} // namespace dtensor::detail
