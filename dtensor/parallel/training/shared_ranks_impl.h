// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/layout/mesh.h>

#include <algorithm>

namespace dtensor::detail {

/// True if both meshes contain a common rank other than this one.
inline bool share_others(const DeviceMesh& a, const DeviceMesh& b) {
  return std::ranges::any_of(a.ranks(), [&](int64_t rank) {
    return rank != a.get_rank() &&
        std::ranges::find(b.ranks(), rank) != b.ranks().end();
  });
}

} // namespace dtensor::detail
