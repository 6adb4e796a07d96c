// SPDX-License-Identifier: BSD-3-Clause
// Helpers of kernels that combine results of shards: dtypes of sums, values
// that do not affect a result, and reductions over the ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/spec.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace dtensor::detail {

/// Returns the dtype in which shards and sums of this dtype are combined: float
/// for 16-bit dtypes, whose sums may overflow.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

/// Return the greatest and the least value of an integer dtype; 1 and 0 for
/// bool.
inline int64_t greatest_integer(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 1;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    default:
      return std::numeric_limits<int64_t>::max();
  }
}
inline int64_t least_integer(at::ScalarType dtype) {
  return dtype == at::kBool || dtype == at::kByte
      ? 0
      : -greatest_integer(dtype) - 1;
}

/// Returns a vector as a tensor of `ndim` dimensions, along dimension `dim`.
/// The other dimensions have size 1.
inline at::Tensor
along_dim(const at::Tensor& vector, int64_t dim, int64_t ndim) {
  std::vector<int64_t> shape(static_cast<size_t>(ndim), 1);
  shape[static_cast<size_t>(dim)] = vector.numel();
  return vector.view(shape);
}

/// Returns the elements of an integer tensor.
inline std::vector<int64_t> to_list(const at::Tensor& integers) {
  const auto host = integers.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<int64_t>();
  return {data, data + host.numel()};
}

/// Returns true if a mesh dimension shards the tensor.
inline bool shards_any_dim(const Spec& spec) {
  return std::ranges::any_of(
      spec.placements(), [](const auto& p) { return p.is_sharded(); });
}

/// Returns the placements of numbers that are sums over shards: Partial where
/// the tensor is sharded, Replicate elsewhere.
inline Placements sums_of_shards(PlacementsRef placements) {
  Placements sums(placements.begin(), placements.end());
  for (auto& p : sums) {
    p = p.is_sharded() ? Placement(Partial(ReduceOp::kSum)) : Replicate();
  }
  return sums;
}

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
