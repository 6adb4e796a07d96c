// SPDX-License-Identifier: BSD-3-Clause
// Result of one case of a randomized test, and sums of results.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace dtensor::randomized {

enum class Outcome : uint8_t {
  kEqual,     // as expected
  kRefused,   // an error of this library
  kSkipped,   // no valid case, for example because the plain program throws
  kDifferent, // all other results
};

struct Verdict {
  Outcome outcome = Outcome::kEqual;
  std::string why;
  /// Number of refusals, by kind.
  std::map<std::string, int64_t> refusals;

  static Verdict refused(const std::string& kind, std::string why);
  static Verdict skipped(std::string why);
  static Verdict different(std::string why);
  /// Returns "different" with the text `why`, or "equal" if the text is empty.
  static Verdict of_difference(std::string why);
};

struct Tally {
  int64_t equal = 0;
  int64_t refused = 0;
  int64_t skipped = 0;
  int64_t different = 0;
  std::map<std::string, int64_t> refusals;

  void add(const Verdict& verdict);
  /// Returns the number of cases that were not skipped.
  int64_t valid() const;
  /// Returns "9 cases: 7 equal, 2 refused (aten::sort: 2), 0 skipped, 0
  /// different".
  std::string text() const;
};

std::string first_line(const std::string& text);

/// Runs `compare` on that many ranks. `compare` returns how the results of this
/// rank differ, or an empty text. A case is refused if the ranks fail with a
/// single error of this library. Ranks that had not reached the call must not
/// add errors of their own.
Verdict try_on_ranks(
    int64_t ranks,
    const std::function<std::string(int64_t rank)>& compare);

} // namespace dtensor::randomized
