// SPDX-License-Identifier: BSD-3-Clause
// What goes wrong in one run of several processes, and what must then be said.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::process_faults {

enum class Kind {
  kThrows,
  kExits,
  kKilled,
  kCrashes,
  kHangs,
  kComesLate,
  kCallsOther,
};
constexpr int64_t kKinds = 7;
/// Points of a training step at which ranks do wrong, from its beginning to its
/// last collective.
constexpr int64_t kPlaces = 10;

/// How processes are started, and what carries their tensors.
struct World {
  std::string backend = "gloo";
  int64_t processes = 3;
  /// Of each process, that are ranks.
  int64_t threads = 1;
  /// mpirun and its options; empty: processes start by themselves.
  std::string launcher;

  int64_t ranks() const {
    return processes * threads;
  }
};

struct Case {
  Kind kind = Kind::kThrows;
  /// The rank that does wrong; -1: none.
  int64_t culprit = -1;
  int64_t place = 0;
  /// Which that is, of all points that a rank passes.
  int64_t point = 0;
  /// Ranks compare what they call.
  bool compares = false;

  /// Before it has met the others, where it comes late at the first place.
  bool is_absent() const {
    return kind == Kind::kComesLate && place == 0;
  }
  /// Others can only wait for it until the timeout.
  bool is_waited_for() const;
  /// Of the collectives: long where nobody may come to wait so long.
  std::chrono::milliseconds timeout() const;
  /// Within which all others have to end, from when the rank does wrong.
  std::chrono::milliseconds patience() const;
  std::string text() const;
};

/// Run number `run`: each kind at each place in 70 runs.
Case make_case(const World& world, int64_t run, uint64_t seed, int64_t points);

/// What is missing of all that a rank of another process has to say of the
/// case; empty: nothing.
std::string
missing_in(const std::string& output, const World& world, const Case& fault);

} // namespace dtensor::process_faults
