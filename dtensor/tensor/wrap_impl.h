// SPDX-License-Identifier: BSD-3-Clause
// How a DTensor is made of its part. What it then is: tensor/meta_impl.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// A DTensor of `spec` whose part on this rank is `local` (shape
/// spec->local_sizes()); no autograd history.
at::Tensor wrap(at::Tensor local, SpecPtr spec);

/// The same for a part that is still under way, on the device of `like`.
at::Tensor wrap(PendingPtr local, SpecPtr spec, const at::Tensor& like);

/// Makes `self` the DTensor of `local` and `spec` from now on, for in-place
/// operators that change the shape.
void rewrap(const at::Tensor& self, at::Tensor local, SpecPtr spec);

} // namespace dtensor::detail
