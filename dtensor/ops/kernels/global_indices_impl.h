// SPDX-License-Identifier: BSD-3-Clause
// Conversions between indices along a local tensor and global indices, and
// elements picked at global indices.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Converts local indices to global indices; `held` lists the global indices
/// that the rank holds.
at::Tensor to_global_indices(const at::Tensor& local, const Intervals& held);

/// Converts global indices to local indices; -1 for indices of other ranks.
at::Tensor to_local_indices(const at::Tensor& global, const Intervals& held);

/// Returns `values`, the elements at the global `indices` along `dim` of a
/// tensor of layout `spec`, as a function of this rank's shard `local`.
/// `values` and `indices` are equal on all ranks that share the dimension. The
/// gradient is scattered into the shards, without communication. If `values` is
/// undefined, the values are picked from the shards.
at::Tensor picked_from_shards(
    const at::Tensor& local,
    const at::Tensor& values,
    const at::Tensor& indices,
    int64_t dim,
    const SpecPtr& spec);

} // namespace dtensor::detail
