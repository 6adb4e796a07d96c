// SPDX-License-Identifier: BSD-3-Clause
// OperatorLog: which operators ran, whose doing they were, and which of them
// called which. Equal calls are one entry, so it does not grow from step to
// step.
#pragma once

#include <dtensor/debug/module_tracker_impl.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/debug/operator_text_impl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dtensor::detail {

struct SeenOperator {
  OperatorText text;
  std::string_view module; // of the outermost that it is part of
  bool backward = false;
  int64_t count = 0;
  std::vector<size_t> calls; // those that it called
};

class OperatorLog final : public OperatorObserver {
 public:
  /// Listens as long as it lives. `model`: see ModuleTracker.
  explicit OperatorLog(torch::nn::Module* model) : tracker_(model) {}

  /// Those that no other one called, in the order in which they first ran.
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
  std::vector<size_t> running_; // from the outermost in
  ModuleTracker tracker_;
  OperatorObserverGuard guard_{*this, Heard::kOperators};
};

/// Whether it only looks at a tensor otherwise: "aten::view". What it calls is
/// as trivial.
bool is_trivial(const OperatorText& op);

/// Which operators a noise level shows: 1 those on DTensors, 2 all others, too,
/// 3 also trivial ones.
bool is_shown(const OperatorText& op, int64_t noise_level);

} // namespace dtensor::detail
