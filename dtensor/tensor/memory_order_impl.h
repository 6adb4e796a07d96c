// SPDX-License-Identifier: BSD-3-Clause
// Memory order of a local tensor's dimensions.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>

namespace dtensor::detail {

/// Returns true if elements along a dimension share memory.
inline bool is_expanded(SizesRef sizes, SizesRef strides) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (strides[d] == 0 && sizes[d] > 1) {
      return true;
    }
  }
  return false;
}

/// Returns `local` with its dimensions in the memory order of `strides`, the
/// strides of the global tensor. Copies if the order differs. The memory order
/// must not depend on the kernel that computed `local`, because ranks with
/// different specs would communicate differently. Differentiable.
inline at::Tensor in_memory_order(at::Tensor local, SizesRef strides) {
  const bool outer_first = std::is_sorted(strides.rbegin(), strides.rend());
  if (outer_first && local.is_contiguous()) {
    return local;
  }
  const auto wanted = dense_strides(local.sizes(), strides);
  bool right = true;
  for (int64_t d = 0; d < local.dim(); ++d) {
    right &=
        local.size(d) == 1 || local.stride(d) == wanted[static_cast<size_t>(d)];
  }
  if (right || local.numel() == 0) {
    return local;
  }
  return at::empty_strided(local.sizes(), wanted, local.options()).copy_(local);
}

} // namespace dtensor::detail
