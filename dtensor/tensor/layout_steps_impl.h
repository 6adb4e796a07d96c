// SPDX-License-Identifier: BSD-3-Clause
// What brings a gradient back over from_local, to_local and redistribute. A
// node of the graph takes one of these steps (tensor/autograd.cpp), or several
// in a row (tensor/region.cpp). All are differentiable.
//
// from_local and to_local are each other's backward, and so are their gradient
// layouts: what differentiates a gradient again arrives in the layout that the
// tensor had forward, Partial kept. Ranks whose results add up to the whole
// have to get terms that do so too, not each the whole, or the second
// derivative counts as often as there are ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Whether autograd is to record what is made of `t`.
inline bool records(const at::Tensor& t) {
  return c10::GradMode::is_enabled() && t.requires_grad();
}

/// The data of `t` without history; its changes count with those of `counted`.
inline at::Tensor alias(const at::Tensor& t, const at::Tensor& counted) {
  return at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(
      counted.unsafeGetTensorImpl()->version_counter(),
      /*allow_tensor_metadata_change=*/true));
}

/// A DTensor of `local` whose changes count together with those of `counted`,
/// since they share memory. A graph that saved a tensor refuses to run backward
/// after a change of it, which it sees by this count, and what an operator
/// writes to a DTensor does not count at its local tensor.
at::Tensor wrap_counted(
    const at::Tensor& local,
    const SpecPtr& spec,
    const at::Tensor& counted);

/// The local tensor of `dtensor`, whose changes count together with its own.
at::Tensor local_counted(const at::Tensor& dtensor);

/// `dtensor` in layout and dtype `to`, without history; cast before it moves.
at::Tensor cast_and_redistribute(const at::Tensor& dtensor, const SpecPtr& to);

/// The same, but that the result is waited for at first use. What peers are to
/// read is copied, unless nobody else holds `dtensor` (moved in) or its part.
at::Tensor cast_and_redistribute_async(at::Tensor dtensor, const SpecPtr& to);

/// The layout of the gradient of a local tensor of `forward`.
SpecPtr gradient_spec(const Spec& forward, PlacementsRef grad_placements);

/// From the gradient of a DTensor to that of the local tensor it was made of.
struct FromLocalStep {
  at::Tensor backward(at::Tensor grad) const;
  SpecPtr forward;
  Placements grad_layout;
  bool of_leaf = false; // whether the local tensor is one
};

/// From the gradient of a local tensor to that of the DTensor.
struct ToLocalStep {
  at::Tensor backward(at::Tensor grad) const;
  SpecPtr forward;
  SpecPtr grad_spec;    // from gradient_spec()
  bool of_leaf = false; // whether the DTensor is one
};

/// From the gradient of the result to that of the source.
struct RedistributeStep {
  at::Tensor backward(at::Tensor grad) const;
  SpecPtr from;
  at::ScalarType grad_dtype = at::kFloat;
  bool async_op = false;
};

} // namespace dtensor::detail
