// SPDX-License-Identifier: BSD-3-Clause
// Conversions between indices along a local tensor and global indices.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

/// Converts local indices to global ones; `held` lists the global indices that
/// the rank holds.
at::Tensor to_global_indices(const at::Tensor& local, const Intervals& held);

/// Converts global indices to local ones; -1 for indices of other ranks.
at::Tensor to_local_indices(const at::Tensor& global, const Intervals& held);

} // namespace dtensor::detail
