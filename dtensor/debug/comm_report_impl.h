// SPDX-License-Identifier: BSD-3-Clause
// Reports of CommDebugMode, and OperatorLog: the operators that ran, their
// modules, and their call tree. Equal calls share an entry, so the log does not
// grow with the number of steps.
#pragma once

#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/debug/module_tracker_impl.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/debug/report_text_impl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dtensor::detail {

struct SeenOperator {
  OperatorText text;
  std::string_view module; // module of the outermost caller
  bool backward = false;
  int64_t count = 0;
  std::vector<size_t> calls; // operators that it called
};

class OperatorLog final : public OperatorObserver {
 public:
  /// Records while the log lives. `model`: see ModuleTracker.
  explicit OperatorLog(torch::nn::Module* model) : tracker_(model) {}

  /// Returns the outermost operators, in the order in which they first ran.
  const std::vector<size_t>& outermost() const {
    return outermost_;
  }
  const SeenOperator& operator[](size_t index) const {
    return seen_[index];
  }
  void reset();

  void on_begin(const at::RecordFunction& call) override;
  void on_end(const at::RecordFunction& call) override;

 private:
  std::vector<SeenOperator> seen_;
  std::vector<size_t> outermost_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<size_t> running_; // from the outermost to the innermost
  ModuleTracker tracker_;
  OperatorObserverGuard guard_{*this, ObservedEvents::kOperators};
};

/// Contents of a report, from noise level 1.
struct CommReport {
  const std::vector<CommRecord>& records;
  const OperatorLog& operators;
  const torch::nn::Module* model; // may be null
  int64_t noise_level;
};

/// Returns a table with a line per record and a line for the sum.
std::string comm_table(
    const std::vector<CommRecord>& records,
    const CommTotal& sum);
/// Returns a paragraph per module.
std::string module_text(const CommReport& report);

/// Returns a JSON array with a line per record.
std::string comm_json(const std::vector<CommRecord>& records);
/// Returns a JSON object with the records and the modules.
std::string module_json(const CommReport& report);

} // namespace dtensor::detail
