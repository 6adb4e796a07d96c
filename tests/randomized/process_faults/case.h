// SPDX-License-Identifier: BSD-3-Clause
// Fault of one run of several processes, and the check of the resulting errors.
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
/// Number of points in a training step at which ranks fail, from its beginning
/// to its last collective.
constexpr int64_t kPlaces = 10;

/// Launch method and backend of the processes.
struct World {
  std::string backend = "gloo";
  int64_t processes = 3;
  /// Ranks (threads) per process.
  int64_t threads = 1;
  /// mpirun and its options. Empty: processes are started without a launcher.
  std::string launcher;

  int64_t ranks() const {
    return processes * threads;
  }
};

struct Case {
  Kind kind = Kind::kThrows;
  /// Rank that fails; -1: no rank.
  int64_t culprit = -1;
  int64_t place = 0;
  /// Index of `place` among all points that a rank passes.
  int64_t point = 0;
  /// True if ranks compare their calls.
  bool compares = false;

  /// True if the rank is late before the rendezvous with the other ranks: late
  /// at the first place.
  bool is_absent() const {
    return kind == Kind::kComesLate && place == 0;
  }
  /// True if other ranks can notice the fault only by the timeout.
  bool is_waited_for() const;
  /// Returns the timeout of the collectives. The timeout is long if no rank
  /// should ever wait for it.
  std::chrono::milliseconds timeout() const;
  /// Returns the time after the fault within which all other ranks must end.
  std::chrono::milliseconds patience() const;
  std::string text() const;
};

/// Returns the case of run number `run`. 70 runs cover each kind at each place.
Case make_case(const World& world, int64_t run, int64_t points);

/// Returns the text that is missing in the output of a rank of another process,
/// or an empty text.
std::string
missing_in(const std::string& output, const World& world, const Case& fault);

} // namespace dtensor::process_faults
