// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

namespace dtensor::randomized {

/// Returns `full` in the layout `placements`. Each rank slices its own shard.
/// Terms of a partial tensor differ across ranks, and add up to exactly the
/// same bits.
at::Tensor
place(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout);

/// Returns true for each element that terms and an operator can multiply by
/// some numbers without overflow.
at::Tensor can_grow(const at::Tensor& t);

} // namespace dtensor::randomized
