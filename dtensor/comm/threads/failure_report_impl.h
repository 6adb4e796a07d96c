// SPDX-License-Identifier: BSD-3-Clause
// Combines the failures of many ranks into one error.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace dtensor::detail {

/// End of one rank. `error` is null if the rank returned. `place` is the
/// collective that threw the error, or empty.
struct RankFailure {
  int64_t rank = 0;
  std::exception_ptr error;
  std::string place;
  /// Error that ended one of the rank's waits, if the rank then caught this
  /// error.
  std::string caught = {};
};

/// Throws one error that lists all failures, rank by rank; equal texts appear
/// once. `where` is the prefix of the message. The error has the type of the
/// ranks' errors if all have the same c10 type, else c10::Error.
void throw_if_any_failed(
    const char* where,
    const std::vector<RankFailure>& failures);

} // namespace dtensor::detail
