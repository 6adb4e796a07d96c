// SPDX-License-Identifier: BSD-3-Clause
// FlightRecord: a rank's last collectives, written to files when one fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

class FlightRecord {
 public:
  /// How many collectives are kept: some steps of a model with ten layers.
  static constexpr size_t kKept = 512;

  /// `host` and `job` are for the reader.
  FlightRecord(int64_t rank, int64_t size, std::string host, std::string job);

  /// A collective begins; `label` is its group's. `name` is a literal.
  /// Returns its number among all of this rank, from 1.
  int64_t begin(const std::string& label, std::string_view name, int64_t bytes);
  void end(int64_t number);

  /// Writes "<folder>/<job>.rank<r>.txt" and ".json", and returns the first
  /// name; empty if they could not be written. The folder is
  /// DTENSOR_FLIGHT_RECORD, else dtensor-flight-<user> where temporary files
  /// go; "off" is for none.
  std::string write(const std::string& why) const noexcept;

 private:
  using Clock = std::chrono::system_clock;
  struct Entry {
    int64_t number = 0;
    std::string label;
    std::string_view name;
    int64_t bytes = 0;
    Clock::time_point begin;
    Clock::time_point end; // the epoch: it has not ended
  };

  Entry& entry(int64_t number) {
    return entries_[static_cast<size_t>(number) % kKept];
  }
  /// The oldest first.
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
