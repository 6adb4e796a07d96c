// SPDX-License-Identifier: BSD-3-Clause
// Executes a plan on a local tensor: one collective per communicating step.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/redistribute/plan.h>

namespace dtensor {

/// Redistributes `local`, the local tensor in layout `from` (shape
/// from->local_sizes()), and returns the local tensor in layout `to`. The
/// result never shares memory with other ranks. With an empty plan, the result
/// is `local` itself; otherwise it is a new tensor with its dimensions in the
/// memory order of `to`. Every rank of the mesh must call this function; a rank
/// outside the mesh gets an empty tensor. Records no autograd history. Throws
/// as plan() does, and ValueError for a `local` of another shape.
DTENSOR_API at::Tensor redistribute_local(
    const at::Tensor& local,
    const SpecPtr& from,
    const SpecPtr& to);

/// Asynchronous variant of redistribute_local(): starts the last collective of
/// the plan and returns while it is in flight. Earlier steps are complete on
/// return. Later steps run in wait(). Collectives read `local` in place if the
/// caller holds no other reference to it (moved in); otherwise they copy the
/// data that other ranks read.
DTENSOR_API PendingPtr redistribute_local_async(
    at::Tensor local,
    const SpecPtr& from,
    const SpecPtr& to);

namespace detail {
/// True if collectives started by redistribute_local_async() on this mesh make
/// progress in the background while this rank computes.
bool communicates_in_background(const DeviceMesh& mesh);
} // namespace detail

} // namespace dtensor
