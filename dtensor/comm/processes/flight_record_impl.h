// SPDX-License-Identifier: BSD-3-Clause
// FlightRecord: the last collectives of a rank, written to files when a
// collective fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

class FlightRecord {
 public:
  /// Number of collectives kept: a few training steps of a ten-layer model.
  static constexpr size_t kKept = 512;

  /// Creates an empty record. `host` and `job` appear in the files only.
  FlightRecord(int64_t rank, int64_t size, std::string host, std::string job);

  /// Records the start of a collective on the group labelled `label`. `name`
  /// must be a string literal. Returns the collective's number on this rank,
  /// counted from 1 over all groups.
  int64_t begin(const std::string& label, std::string_view name, int64_t bytes);
  void end(int64_t number);

  /// Writes "<folder>/<job>.rank<r>.txt" and ".json" and returns the path of
  /// the former; returns "" if writing fails. The folder is
  /// DTENSOR_FLIGHT_RECORD; if this variable is unset, dtensor-flight-<user> in
  /// the temporary directory. Writes nothing if DTENSOR_FLIGHT_RECORD is "off".
  std::string write(const std::string& why) const noexcept;

 private:
  using Clock = std::chrono::system_clock;
  struct Entry {
    int64_t number = 0;
    std::string label;
    std::string_view name;
    int64_t bytes = 0;
    Clock::time_point begin;
    Clock::time_point end; // epoch until the collective ends
  };

  Entry& entry(int64_t number) {
    return entries_[static_cast<size_t>(number) % kKept];
  }
  /// Returns the kept entries, oldest first.
  std::vector<const Entry*> kept() const;
  std::string as_text(const std::string& why) const;
  std::string as_json(const std::string& why) const;

  int64_t rank_;
  int64_t size_;
  std::string host_;
  std::string job_;
  int64_t last_ = 0;
  std::vector<Entry> entries_{kKept};
};

} // namespace dtensor::detail
