// SPDX-License-Identifier: BSD-3-Clause
// A program run without data, to see which layouts its operators would have.
#pragma once

#include <dtensor/program/interpreter_impl.h>

#include <dtensor/layout/placement.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

namespace dtensor::detail {

/// All values of one run on meta tensors, replicated on a mesh that nobody
/// communicates over.
class Trial {
 public:
  Trial(const ProgramState& state, int64_t ranks);

  /// Whether the value is a tensor that is known without data.
  bool knows(Slot slot) const;
  SizesRef sizes_of(Slot slot) const;
  /// Whether both cut a value like this one into the same parts.
  bool is_same_layout(Slot slot, const Placement& a, const Placement& b) const;

  /// The layout that `wanted` comes in if the values in `cuts` have those, and
  /// `nodes`, in this order, are called anew; nothing if one of them would
  /// communicate, or needs what is not known. `changed` gets the values that
  /// are not replicated then.
  std::optional<Placement> layout_after(
      const std::map<Slot, Placement>& cuts,
      const std::vector<size_t>& nodes,
      Slot wanted,
      std::vector<Slot>& changed) const;

 private:
  static ProgramState state_without_data(
      const ProgramState& state,
      int64_t ranks);
  bool run_cut(
      Interpreter& interpreter,
      const std::map<Slot, Placement>& cuts,
      const std::vector<size_t>& nodes,
      std::vector<Slot>& changed) const;
  void describe_results(const GraphNode& node, std::vector<c10::IValue>& values)
      const;
  static bool takes_any(const GraphNode& node, const std::set<Slot>& slots);
  bool can_call(const GraphNode& node, const std::vector<c10::IValue>& values)
      const;

  ProgramState state_;
  std::vector<c10::IValue> values_;
};

} // namespace dtensor::detail
