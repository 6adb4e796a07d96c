// SPDX-License-Identifier: BSD-3-Clause
// Progress of the workers in shared memory: counts so far, and each worker's
// current place.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <string>

namespace dtensor::nets {

/// Kinds of refusals, by their error text.
enum class Refusal : uint8_t {
  kNoRule,
  kMixedPlain,
  kInPlaceLayout,
  kRandom,
  kOther,
  kCount,
};

/// Returns the kind of a DTensor operator's error text, or kCount if the error
/// is not ours.
Refusal refusal_of(const std::string& error);

/// Place of a worker: the next item to try, in this order.
struct Place {
  int64_t mesh = -1; // -1: on plain tensors
  int64_t call = 0;
  int64_t combination = 0;

  auto operator<=>(const Place&) const = default;
};

struct Tally {
  using Count = std::atomic<int64_t>;

  Count equal;
  std::array<Count, static_cast<size_t>(Refusal::kCount)> refused;
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
  static Tally& make();

  /// "1200 combinations: 900 equal, 300 refused (no rule: 300), ...".
  std::string text() const;
};

/// Prints a line atomically, although several processes write.
void print_line(const std::string& line);

} // namespace dtensor::nets
