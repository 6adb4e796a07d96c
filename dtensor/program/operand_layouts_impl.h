// SPDX-License-Identifier: BSD-3-Clause
// Layouts of the operands of a program's calls. The graph lists all uses of a
// value, so each redistribution is done once for all uses. The order of
// redistributions is the cheapest for all uses in the last run
// (cheapest_route()).
//
// A user cannot insert a redistribute() into the graph. Therefore an operator
// that refuses its sharded operands gets replicated operands. If memory is
// written, a redistributed copy would miss the writes, so the value itself
// changes layout (WrittenViews).
#pragma once

#include <dtensor/layout/spec.h>
#include <dtensor/program/graph_impl.h>

#include <ATen/core/Tensor.h>
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

/// Views that are written later, in one run. Redistribution allocates new
/// memory, so it would separate a view from its base, and the copy would miss
/// the writes. This class redistributes the base and makes its views again.
class WrittenViews {
 public:
  /// Must be called before and after each call of the program. The base of the
  /// returned views is in the node's in_place_args.
  void begin(const GraphNode& node, const torch::jit::Stack& args);
  void end(const torch::jit::Stack& results);
  /// Releases the calls whose views are no longer in use. Examines many calls
  /// at once, and only in some of its own calls, so that all calls together
  /// take linear time.
  void forget_unused();

  /// Returns `t`, the argument `own` of a call, in layout `to`, and replaces
  /// all `values` that share its memory. Returns `t` unchanged if it shares
  /// memory with an input.
  at::Tensor brought(
      const at::Tensor& t,
      const InPlaceArg& own,
      const SpecPtr& to,
      std::vector<c10::IValue>& values);

 private:
  struct ViewCall {
    const GraphNode* node = nullptr;
    torch::jit::Stack args;
    size_t base = 0;               // index of the base in args
    std::vector<at::Tensor> views; // views of the base's memory
  };
  using ViewCalls = std::vector<ViewCall>; // in order of the calls
  /// Replacements by original tensor.
  using Moved = std::map<const c10::TensorImpl*, at::Tensor>;

  static void remove_empty(ViewCalls& calls);
  static void keep_used(
      ViewCalls& calls,
      const at::Tensor& t,
      c10::ArrayRef<c10::IValue> values,
      const std::vector<Slot>& sharing);
  static void retake_views(ViewCalls& calls, Moved& moved);

  std::map<Slot, ViewCalls> calls_; // by the first slot that shares memory
  size_t num_calls_ = 0;            // at most, in all of calls_
  size_t num_waits_ = 0;            // of forget_unused() since the last look
  ViewCall begun_;
};

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
