// SPDX-License-Identifier: BSD-3-Clause
// Search for products of a graph that are sharded by columns or by rows.
#pragma once

#include <dtensor/layout/placement.h>
#include <dtensor/program/interpreter_impl.h>
#include <dtensor/program/plan_text.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns a style for each sharded product, in the order of the calls. The
/// modules of `root` hold the graph's weights. find_tp_plan() (tp_transform.h)
/// documents the styles.
std::vector<PlanEntryText> find_pairs(
    const ProgramState& state,
    const torch::nn::Module& root);

/// A call of linear or embedding with the weight of a module.
struct Product {
  size_t node = 0;
  std::string module;
  at::Tensor weight;
  Slot input = 0;
  Slot output = 0;
};

/// Products by the call's index in Graph::nodes.
using Products = std::map<size_t, Product>;

Products find_linear_calls(
    const ProgramState& state,
    const torch::nn::Module& root);
Products find_embedding_calls(
    const ProgramState& state,
    const torch::nn::Module& root);

/// A run of a program without data, which finds the layouts of its operators'
/// results: values on meta tensors, replicated on a mesh without communication.
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
