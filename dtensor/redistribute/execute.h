// SPDX-License-Identifier: BSD-3-Clause
// Carries out a plan on a local tensor: one collective per communicating step.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/redistribute/plan.h>

namespace dtensor {

/// The local tensor in layout `to` of a tensor whose local part in layout
/// `from` is `local` (shape from->local_sizes()). The result never shares
/// memory with other ranks; it is `local` itself when the plan is empty, and
/// memory of its own otherwise, in the order of the strides of `to`. Every rank
/// of the mesh must call it; on a rank outside the mesh it returns an empty
/// tensor. No autograd.
/// Throws as plan() does, and ValueError for a `local` of another shape.
DTENSOR_API at::Tensor redistribute_local(
    const at::Tensor& local,
    const SpecPtr& from,
    const SpecPtr& to);

/// The same, but the last collective of the plan is only entered: the steps
/// before it are done when this returns, the others while somebody waits for
/// the result. A `local` that nobody else holds (moved in) is read in place,
/// any other is copied where peers are to read it. An all_to_all of parts of
/// unlike shapes is waited for at once.
DTENSOR_API PendingPtr redistribute_local_async(
    at::Tensor local,
    const SpecPtr& from,
    const SpecPtr& to);

namespace detail {
/// Whether what redistribute_local_async() enters on this mesh goes on by
/// itself while this rank computes.
bool communicates_alone(const DeviceMesh& mesh);
} // namespace detail

} // namespace dtensor
