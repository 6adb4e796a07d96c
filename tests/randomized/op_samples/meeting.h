// SPDX-License-Identifier: BSD-3-Clause
// Exchange of results between the ranks of a trial, so that all ranks reach the
// same verdict. The exchange does not use the collectives of the library under
// test.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace dtensor::randomized {

struct Told {
  std::string error;
  std::string backward_error;
  std::string difference;
};

class AllResults {
 public:
  explicit AllResults(std::vector<Told> told) : told_(std::move(told)) {}

  /// Returns true if some ranks got an error and others did not.
  bool out_of_step() const;
  /// Returns the first error in rank order.
  const std::string& error() const;
  const std::string& backward_error() const;
  const std::string& difference() const;
  /// Returns the errors of all ranks.
  std::string text() const;

 private:
  std::vector<Told> told_;
};

/// Barrier with exchange. Aborts the process if a rank does not arrive in time,
/// because such a rank waits in a collective for ranks that have arrived here.
class Meeting {
 public:
  explicit Meeting(size_t ranks) : ranks_(ranks) {}

  /// Waits for all ranks and returns their results, in no particular order.
  AllResults tell(Told told);

 private:
  size_t ranks_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Told> here_;
  std::vector<Told> last_;
  uint64_t round_ = 0;
};

} // namespace dtensor::randomized
