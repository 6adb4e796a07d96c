// SPDX-License-Identifier: BSD-3-Clause
// A region is a computation on local tensors that runs with their own autograd.
// In the graph it is one node, which runs those of the computation within, if
// they are few; otherwise there is one node before them and one behind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/layout/spec.h>
#include <dtensor/torch_nodes_impl.h>

namespace dtensor::detail {

/// A tensor on its way into a region. This rank is in its mesh.
struct RegionInput {
  /// A DTensor, or a plain tensor whose layout is `from`.
  at::Tensor origin;
  SpecPtr from;
  /// The same as the region computes on it: `origin` itself, or a DTensor
  /// without history that was made of it.
  at::Tensor value;
  /// Layout of the gradient of the value's local tensor, from gradient_spec().
  SpecPtr grad;
};
using RegionInputs = c10::SmallVector<RegionInput, 4>;

/// `origin` as a region computes on it: in layout `to`, or as it is if that is
/// null.
RegionInput region_input(at::Tensor origin, const SpecPtr& to, SpecPtr grad);

/// How a result leaves a region.
struct RegionExit {
  SpecPtr to;            // the layout that it is brought to; null: its own
  bool as_local = false; // whether a local tensor leaves, and not a DTensor
};

class Region {
 public:
  explicit Region(const RegionInputs& inputs);

  /// This rank's parts of the values, connected to the origins.
  const c10::SmallVector<at::Tensor, 4>& locals() const {
    return locals_;
  }

  /// The result `local`, a part of a tensor of layout `made`, outside the
  /// region. `may_fuse`: the region may be one node. That is so if there is no
  /// other result, and all ranks have recorded the same graph: in second
  /// derivatives one node communicates otherwise than several.
  at::Tensor leave(
      const at::Tensor& local,
      const SpecPtr& made,
      const RegionExit& exit,
      bool may_fuse) const;

 private:
  c10::SmallVector<at::Tensor, 4> locals_;
  // Of plain tensors that enter as they are.
  c10::SmallVector<torch::autograd::Edge, 2> passing_;
  NodePtr enter_; // null: nothing is recorded
};

/// The part of `input`, which may be plain: a region that computes nothing.
at::Tensor enter_alone(const RegionInput& input);

/// Region::leave() where nothing is recorded.
at::Tensor leave_unrecorded(
    const at::Tensor& local,
    const SpecPtr& made,
    const RegionExit& exit);

} // namespace dtensor::detail
