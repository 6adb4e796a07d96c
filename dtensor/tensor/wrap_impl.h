// SPDX-License-Identifier: BSD-3-Clause
// Construction of a DTensor from its local tensor. tensor/meta_impl.h describes
// a DTensor's state.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Returns a DTensor of `spec` with local tensor `local` (shape
/// spec->local_sizes()), without autograd history.
at::Tensor wrap(at::Tensor local, SpecPtr spec);

/// The overload for a local tensor in flight, on the device of `like`.
at::Tensor wrap(PendingPtr local, SpecPtr spec, const at::Tensor& like);

/// Replaces local tensor and spec of `self`. For in-place operators that change
/// the shape.
void rewrap(const at::Tensor& self, at::Tensor local, SpecPtr spec);

} // namespace dtensor::detail
