// SPDX-License-Identifier: BSD-3-Clause
// Elements picked from a sharded dimension, as a differentiable function of the
// local shard.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Returns `values`, the elements at the global `indices` along `dim` of a
/// tensor of layout `spec`, as a function of this rank's shard `local`.
/// `values` and `indices` are equal on all ranks that share the dimension. The
/// gradient is scattered into the shards, without communication. Undefined
/// `values` are picked from the shards.
at::Tensor picked_from_shards(
    const at::Tensor& local,
    const at::Tensor& values,
    const at::Tensor& indices,
    int64_t dim,
    const SpecPtr& spec);

} // namespace dtensor::detail
