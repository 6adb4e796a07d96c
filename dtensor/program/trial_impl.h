// SPDX-License-Identifier: BSD-3-Clause
// Runs a program without data to find the layouts of its operators' results.
#pragma once

#include <dtensor/program/interpreter_impl.h>

#include <dtensor/layout/placement.h>

#include <map>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// Values of one run on meta tensors, replicated on a mesh without
/// communication.
class Trial {
 public:
  Trial(const ProgramState& state, int64_t ranks);

  /// True if the value is a tensor of known size, without data.
  bool is_known(Slot slot) const;
  SizesRef sizes_of(Slot slot) const;
  /// True if both placements give the same shards of this value.
  bool is_same_layout(Slot slot, const Placement& a, const Placement& b) const;

  /// Calls `nodes`, in this order, with the values in `sharded` sharded, and
  /// returns the resulting layout of `wanted`. Returns nothing if a node would
  /// communicate or needs an unknown value. `changed` receives the values that
  /// are no longer replicated.
  std::optional<Placement> layout_after(
      const std::map<Slot, Placement>& sharded,
      const std::vector<size_t>& nodes,
      Slot wanted,
      std::vector<Slot>& changed) const;

 private:
  bool run_sharded(
      Interpreter& interpreter,
      const std::map<Slot, Placement>& sharded,
      const std::vector<size_t>& nodes,
      std::vector<Slot>& changed) const;
  void describe_results(const GraphNode& node, std::vector<c10::IValue>& values)
      const;

  ProgramState state_;
  std::vector<c10::IValue> values_;
};

} // namespace dtensor::detail
