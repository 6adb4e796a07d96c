// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of a trial tell each other how a call went, so that all
// judge it alike. It is not a collective of the library that is tested.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace dtensor::nets {

struct Told {
  std::string error;
  std::string backward_error;
  std::string difference;
};

class AllTold {
 public:
  explicit AllTold(std::vector<Told> told) : told_(std::move(told)) {}

  /// Whether some ranks got an error and others none.
  bool out_of_step() const;
  /// The first rank's that has one.
  const std::string& error() const;
  const std::string& backward_error() const;
  const std::string& difference() const;
  /// All ranks' errors.
  std::string text() const;

 private:
  std::vector<Told> told_;
};

/// Ends the process with kStuck if a rank does not come in time: it waits in a
/// collective for ranks that are here.
class Meeting {
 public:
  static constexpr int kStuck = 3;

  explicit Meeting(size_t ranks) : ranks_(ranks) {}

  /// What all ranks tell, in no particular order.
  AllTold tell(Told told);

 private:
  size_t ranks_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Told> here_;
  std::vector<Told> last_;
  uint64_t round_ = 0;
};

} // namespace dtensor::nets
