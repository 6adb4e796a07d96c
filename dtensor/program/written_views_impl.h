// SPDX-License-Identifier: BSD-3-Clause
// Views of what is written later. A copy of such a value in another layout
// would not see the writes, so the value itself changes layout, and the views
// of it that are in use are taken again.
#pragma once

#include <dtensor/layout/spec.h>
#include <dtensor/program/graph_impl.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <map>
#include <vector>

namespace dtensor::detail {

/// Those of one run.
class WrittenViews {
 public:
  /// Before and after a call. What it returned views of stands in its own_args.
  void begin(const GraphNode& node, const torch::jit::Stack& args);
  void end(const torch::jit::Stack& results);
  /// Lets go of what only views were taken of that nobody has any more.
  void forget_unused();

  /// `t`, the argument `own` of a call, in layout `to`; with it change all
  /// `values` that share its memory. As it is if an input has this memory.
  at::Tensor brought(
      const at::Tensor& t,
      const OwnArg& own,
      const SpecPtr& to,
      std::vector<c10::IValue>& values);

 private:
  struct ViewCall {
    const GraphNode* node = nullptr;
    torch::jit::Stack args;
    size_t base = 0;               // which of these
    std::vector<at::Tensor> views; // of its memory
  };
  using ViewCalls = std::vector<ViewCall>; // in order
  /// What takes the place of a tensor.
  using Moved = std::map<const c10::TensorImpl*, at::Tensor>;

  static void keep_used(
      ViewCalls& calls,
      const at::Tensor& t,
      c10::ArrayRef<c10::IValue> values,
      const std::vector<Slot>& sharing);
  static void take_again(ViewCalls& calls, Moved& moved);

  std::map<Slot, ViewCalls> calls_; // by the first of the slots that share
  ViewCall begun_;
};

} // namespace dtensor::detail
