// SPDX-License-Identifier: BSD-3-Clause
// OperatorLog: the operators that ran, their modules, and their call tree.
// Equal calls share an entry, so the log does not grow with the number of
// steps.
#pragma once

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

/// Returns true for operators that only reinterpret a tensor, such as
/// "aten::view". Operators called by a trivial operator are trivial too.
bool is_trivial(const OperatorText& op);

/// Returns true if the noise level shows the operator: 1 shows operators on
/// DTensors, 2 also the others except trivial ones, 3 also trivial operators.
bool is_shown(const OperatorText& op, int64_t noise_level);

} // namespace dtensor::detail
