// SPDX-License-Identifier: BSD-3-Clause
// Views of values that are written later. A redistributed copy of such a value
// would miss the writes. The value itself therefore changes layout, and the
// views that are in use are made again.
#pragma once

#include <dtensor/layout/spec.h>
#include <dtensor/program/graph_impl.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <map>
#include <vector>

namespace dtensor::detail {

/// Views that are written later, in one run. Redistribution allocates new
/// memory, so it would separate a view from its base. This class redistributes
/// the base and makes its views again.
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

} // namespace dtensor::detail
