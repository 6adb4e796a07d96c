// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/api.h>

namespace dtensor::detail {

/// Ignores the signals that a write may raise for as long as an instance lives,
/// unless the program handles them. The write then fails instead of ending the
/// process. The signals are SIGPIPE, since Gloo writes to connections that
/// peers have closed, and SIGXFSZ, which a write beyond `ulimit -f` raises, in
/// shared memory too. (Python ignores both in every program.)
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
