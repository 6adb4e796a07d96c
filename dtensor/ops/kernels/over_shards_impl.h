// SPDX-License-Identifier: BSD-3-Clause
// Reductions along a tensor dimension that is sharded over the ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/spec.h>

#include <limits>

namespace dtensor::detail {

/// Returns the maximum along `dim`, which is kept with size 1. The maximum of
/// no elements is -inf.
inline at::Tensor greatest_along(const at::Tensor& t, int64_t dim) {
  if (t.size(dim) > 0) {
    return t.amax(dim, /*keepdim=*/true);
  }
  auto sizes = t.sizes().vec();
  sizes[static_cast<size_t>(dim)] = 1;
  return at::full(sizes, -std::numeric_limits<double>::infinity(), t.options());
}

/// Reduces a local tensor over the ranks that have the shards of dimension
/// `dim` of a tensor of layout `spec`.
inline at::Tensor reduced_over_shards(
    at::Tensor local,
    const Spec& spec,
    int64_t dim,
    ReduceOp op) {
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (spec.placements()[static_cast<size_t>(m)].is_sharded(dim)) {
      local = get_group(spec.mesh(), m).all_reduce(local, op);
    }
  }
  return local;
}

} // namespace dtensor::detail
