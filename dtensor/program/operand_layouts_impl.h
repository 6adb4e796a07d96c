// SPDX-License-Identifier: BSD-3-Clause
// In which layouts the calls of a program take their values. The graph knows
// all uses of a value, so it is brought to a layout once, however many want it
// so, and on the way that is cheapest for all of them, as they were the last
// time (routes_impl.h); and nobody can put a redistribute() into the graph, so
// what an operator refuses as it is cut it gets whole. Where memory is written
// to, a copy in another layout will not do: the value itself changes layout
// (written_views_impl.h).
#pragma once

#include <dtensor/layout/spec.h>
#include <dtensor/program/graph_impl.h>
#include <dtensor/program/written_views_impl.h>

#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// What a call wants of operands in these layouts, which follows from layouts
/// alone and is alike on all ranks.
struct CallLayouts {
  std::vector<SpecPtr> given;  // of the DTensors among its arguments
  std::vector<SpecPtr> wanted; // of each argument; null: as it is
  std::vector<SpecPtr> from;   // what those came in
  bool changes_any = false;
};

/// Of all calls of a graph: what was seen of each, the latest first.
using GraphLayouts = std::vector<std::vector<CallLayouts>>;

/// The values of one run in the layouts that they were brought to.
class OperandLayouts {
 public:
  OperandLayouts(const Graph& graph, GraphLayouts& seen);

  /// Brings the operands of a call, on the stack, to what it wants. Of `values`
  /// those change layout whose memory it needs.
  void place(
      const GraphNode& node,
      const c10::OperatorHandle& op,
      torch::jit::Stack& stack,
      std::vector<c10::IValue>& values);
  /// After the call.
  void called(const GraphNode& node, const torch::jit::Stack& results);
  /// Nobody asks for the value again.
  void forget(Slot slot) {
    made_[slot].clear();
    views_.forget_unused();
  }

 private:
  struct Made {
    at::Tensor from;
    uint32_t version = 0;  // of `from`
    bool recorded = false; // while gradients were
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
  std::vector<SpecPtr> wanted_from(
      size_t node,
      Slot slot,
      const SpecPtr& from,
      const SpecPtr& first) const;

  const Graph& graph_;
  GraphLayouts& seen_;
  std::vector<std::vector<Made>> made_; // by slot
  WrittenViews views_;
};

} // namespace dtensor::detail
