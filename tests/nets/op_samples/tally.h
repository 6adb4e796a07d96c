// SPDX-License-Identifier: BSD-3-Clause
// What the workers of the net tell the process that started them, through
// memory that they share: how it went so far, and what each is at.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <string>

namespace dtensor::nets {

/// Kinds of refusals, by the text.
enum class Refusal : uint8_t {
  kNoRule,
  kMixedPlain,
  kInPlaceLayout,
  kRandom,
  kOther,
  kCount,
};

/// Of the error text of an operator on DTensors; kCount if it is not one of
/// ours.
Refusal refusal_of(const std::string& error);

/// A worker's place: the next thing to try, in this order.
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
  Count pending; // different, and known

  struct Worker {
    std::atomic<uint64_t> beats;
    Count mesh, call, combination;

    void at(const Place& place);
    Place place() const;
  };
  std::array<Worker, 16> workers;

  /// In memory that forked processes share.
  static Tally& make();

  /// "1200 combinations: 900 equal, 300 refused (no rule: 300), ...".
  std::string text() const;
};

/// One line, whole, though several processes write.
void print_line(const std::string& line);

} // namespace dtensor::nets
