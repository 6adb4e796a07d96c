// SPDX-License-Identifier: BSD-3-Clause
// Progress of the workers in shared memory: counts so far, and each worker's
// current place.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <string>

#include "tests/randomized/harness/verdict.h"

namespace dtensor::randomized {

/// Returns the kind of a refusal, by the text of a DTensor operator's error:
/// "no rule", "mixed plain", "in place layout", "random" or "other". Returns an
/// empty text for an error of another library, and for local results that do
/// not have the shape of their layout.
std::string refusal_of(const std::string& error);

/// Place of a worker: the next item to try, in this order.
struct Place {
  int64_t mesh = -1; // -1: on plain tensors
  int64_t call = 0;
  int64_t combination = 0;

  auto operator<=>(const Place&) const = default;
};

struct SharedTally {
  using Count = std::atomic<int64_t>;

  Count equal;
  std::array<Count, 5> refused; // by kind
  Count skipped;
  Count different;
  Count pending; // different, but listed as pending

  struct Worker {
    std::atomic<uint64_t> beats;
    Count mesh, call, combination;

    void at(const Place& place);
    Place place() const;
  };
  std::array<Worker, 16> workers;

  /// Creates a tally in memory that forked processes share.
  static SharedTally& make();

  void add(const Verdict& verdict);
  /// Returns the counts, without those of pending operators.
  Tally counts() const;
};

/// Prints a line atomically, although several processes write.
void print_line(const std::string& line);

} // namespace dtensor::randomized
