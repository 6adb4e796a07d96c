// SPDX-License-Identifier: BSD-3-Clause
// One error out of the failures of many ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace dtensor::detail {

/// How one rank ended: `error` is null if it returned. `place` is the
/// collective that the error came out of, or empty.
struct RankFailure {
  int64_t rank = 0;
  std::exception_ptr error;
  std::string place;
  /// What ended one of its waits, although it then went on.
  std::string caught = {};
};

/// Throws one error, of `where`, that tells all failures, rank by rank; those
/// with the same text once. It has the type of the ranks' errors if they all
/// have the same c10 type, else c10::Error.
void throw_if_any_failed(
    const char* where,
    const std::vector<RankFailure>& failures);

} // namespace dtensor::detail
