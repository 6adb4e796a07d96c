// SPDX-License-Identifier: BSD-3-Clause
// Layouts of the operands of a program's calls. The graph lists all uses of a
// value, so each redistribution is done once for all uses. The order of
// redistributions is the cheapest for all uses in the last run
// (cheapest_route()).
//
// A user cannot insert a redistribute() into the graph. Therefore an operator
// that refuses its sharded operands gets replicated operands. If memory is
// written, a redistributed copy would miss the writes, so the value itself
// changes layout (written_views_impl.h).
#pragma once

#include <dtensor/layout/spec.h>
#include <dtensor/program/graph_impl.h>
#include <dtensor/program/written_views_impl.h>

#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <vector>

namespace dtensor::detail {

/// Layouts that a call needs for operands in given layouts. The needed layouts
/// depend on layouts alone, so they are equal on all ranks.
struct CallLayouts {
  std::vector<SpecPtr> given;  // of the DTensors among the arguments
  std::vector<SpecPtr> wanted; // by argument; null: unchanged
  std::vector<SpecPtr> from;   // layouts of these arguments as given
  bool changes_any = false;
};

/// Remembered layouts of each call of a graph, the latest call first.
using GraphLayouts = std::vector<std::vector<CallLayouts>>;

/// Redistributed versions of the values of one run.
class OperandLayouts {
 public:
  OperandLayouts(const Graph& graph, GraphLayouts& seen);

  /// Redistributes the operands of a call, on the stack, to the layouts that
  /// the call needs. Entries of `values` change layout if the call needs their
  /// memory.
  void place(
      const GraphNode& node,
      const c10::OperatorHandle& op,
      torch::jit::Stack& stack,
      std::vector<c10::IValue>& values);
  /// Must be called after each call.
  void called(const GraphNode& node, const torch::jit::Stack& results);
  /// Releases the redistributed versions of a value that is not used again.
  void forget(Slot slot) {
    made_[slot].clear();
    views_.forget_unused();
  }

 private:
  struct Made {
    at::Tensor from;
    uint32_t version = 0;  // version counter of `from`
    bool recorded = false; // made while gradients were recorded
    at::Tensor value;
  };

  const CallLayouts* layouts_of(
      const GraphNode& node,
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> args);
  void bring_all(
      const GraphNode& node,
      const c10::OperatorHandle& op,
      torch::jit::Stack& stack,
      std::vector<c10::IValue>& values);
  at::Tensor
  brought(Slot slot, const at::Tensor& t, const SpecPtr& to, size_t node);
  at::Tensor made_of(Slot slot, const at::Tensor& t, const SpecPtr& to);
  std::vector<SpecPtr> later_layouts(
      size_t node,
      Slot slot,
      const SpecPtr& from,
      const SpecPtr& first) const;

  const Graph& graph_;
  GraphLayouts& seen_;
  std::vector<std::vector<Made>> made_; // by slot
  /// Slots with redistributed versions, by the first slot that shares memory.
  std::map<Slot, std::vector<Slot>> made_in_;
  WrittenViews views_;
};

/// Returns the layouts that a value in layout `from` passes through on its way
/// to `wanted[0]`, which is the last. The other layouts in `wanted` are
/// included if an order through them takes less modelled time in total, or
/// equal time with fewer collectives. With `both_ways`, the communication of
/// gradients in the backward pass counts too.
///
///   from S(0), wanted S(1) and R   ->  R, S(1)   an all-gather, then a slice
///
/// The result depends on layouts alone, so it is equal on all ranks.
DTENSOR_API std::vector<SpecPtr> cheapest_route(
    const SpecPtr& from,
    const std::vector<SpecPtr>& wanted,
    bool both_ways);

} // namespace dtensor::detail
