// SPDX-License-Identifier: BSD-3-Clause
// How groups check their arguments and tell observers what a call sends.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/observer.h>

#include <string_view>
#include <utility>

namespace dtensor::detail {

inline int64_t bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

/// (n - 1) / n * total: what a ring sends of a buffer that n ranks share.
inline double ring_bytes(const Group& group, int64_t total) {
  const auto n = static_cast<double>(group.size());
  return (n - 1) * static_cast<double>(total) / n;
}

/// Tells this rank's observers.
void tell(
    const Group& group,
    CollectiveKind kind,
    int64_t payload,
    double wire);
/// Sent is all of `input` but the part along `shard_dim` that the rank keeps.
void tell_shard_dim_alltoall(
    const Group& group,
    const at::Tensor& input,
    int64_t shard_dim);

/// Throws ValueError for an undefined tensor, TypeError for a DTensor.
void check_defined(std::string_view where, const at::Tensor& tensor);

/// Throws TypeError if `op` has no meaning for `dtype`. Booleans follow NCCL:
/// sum is "or", product is "and", avg is an error.
void check_reducible(std::string_view where, at::ScalarType dtype, ReduceOp op);

/// `dim` counted from the front. Throws IndexError if there is no such one.
int64_t wrap_dim(std::string_view where, const at::Tensor& tensor, int64_t dim);

/// (gather_dim, shard_dim) of a shard_dim_alltoall, counted from the front.
std::pair<int64_t, int64_t>
two_dims(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim);

} // namespace dtensor::detail
