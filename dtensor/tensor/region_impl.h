// SPDX-License-Identifier: BSD-3-Clause
// A region: a computation on local tensors, which autograd records. In the
// graph the region is a single node that runs the recorded nodes, if they are
// few. Otherwise one node precedes the recorded nodes and one node follows
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/layout/spec.h>
#include <dtensor/torch_nodes_impl.h>

namespace dtensor::detail {

/// A tensor that a region computes on, and its origin. This rank must be in the
/// mesh of both.
struct Conversion {
  /// A DTensor, or a plain tensor with layout `from`. Undefined if `value` has
  /// its own history.
  at::Tensor origin = {};
  SpecPtr from = nullptr;
  /// The tensor that the region computes on: `origin` itself, or a DTensor
  /// without history that was redistributed from it.
  at::Tensor value = {};
  /// Layout of the gradient of the value's local tensor, from gradient_spec().
  SpecPtr gradient = nullptr;
};
using Conversions = c10::SmallVector<Conversion, 4>;

/// Returns the conversion of `origin` to layout `to`; null leaves the layout
/// unchanged.
Conversion
conversion_to(at::Tensor origin, const SpecPtr& to, SpecPtr gradient);

/// The conversion of a region's result. The layout of the result is known
/// before the region runs.
struct ResultConversion {
  SpecPtr to;            // layout of the result; null: unchanged
  bool as_local = false; // returns a local tensor instead of a DTensor
};

class Region {
 public:
  explicit Region(const Conversions& inputs);

  /// Returns the local tensors of the inputs, connected to the origins in the
  /// graph.
  const c10::SmallVector<at::Tensor, 4>& locals() const {
    return locals_;
  }

  /// Converts the result `local`, a local tensor of layout `made`, to a tensor
  /// outside the region. `may_fuse` allows the region to become a single node.
  /// Fusing requires that the region has no other result, and that all ranks
  /// recorded the same graph. (In second derivatives, a fused node communicates
  /// in another order than several nodes.)
  at::Tensor convert_result(
      const at::Tensor& local,
      const SpecPtr& made,
      const ResultConversion& exit,
      bool may_fuse) const;

 private:
  c10::SmallVector<at::Tensor, 4> locals_;
  // Gradient edges of plain tensors that enter unchanged.
  c10::SmallVector<torch::autograd::Edge, 2> passing_;
  NodePtr enter_; // null: nothing is recorded
};

/// Returns the local tensor of `input`, which may be plain. The region consists
/// of this single conversion.
at::Tensor convert_single_input(const Conversion& input);

/// Like Region::convert_result(), for results that are not recorded.
at::Tensor convert_unrecorded_result(
    const at::Tensor& local,
    const SpecPtr& made,
    const ResultConversion& exit);

} // namespace dtensor::detail
