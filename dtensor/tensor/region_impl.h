// SPDX-License-Identifier: BSD-3-Clause
// A region is a computation on local tensors that runs with their own autograd.
// It is entered through one node of the graph, whatever the number of tensors
// and of the steps that each takes, and left through one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/layout/spec.h>

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

/// This rank's parts of the values, connected to the origins.
c10::SmallVector<at::Tensor, 4> enter_region(const RegionInputs& inputs);

/// How a result leaves a region.
struct RegionExit {
  SpecPtr to; // the layout that it is brought to; null: its own
  bool as_local = false; // whether a local tensor leaves, and not a DTensor
};

/// `local`, a part of a tensor of layout `made`, outside the region.
at::Tensor leave_region(
    const at::Tensor& local,
    const SpecPtr& made,
    const RegionExit& exit = {});

} // namespace dtensor::detail
