// SPDX-License-Identifier: BSD-3-Clause
// Assignment of elements to writing ranks. The assignment is a pure function of
// the layouts, so all ranks compute the same plan without communication.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// Layout of a tensor over the ranks that save. Several equally shaped meshes
/// may hold the tensor, for example the rows of a larger mesh over which it is
/// replicated. `meshes` lists the ranks of each mesh in its order, as positions
/// in the saving group.
struct HeldTensor {
  at::ScalarType dtype = at::kFloat;
  Sizes sizes;
  std::vector<int64_t> mesh_shape;
  Placements placements;
  std::vector<std::vector<int64_t>> meshes;
};

/// A box of tensor number `tensor` that `rank` writes: its offsets in the
/// tensor and in the rank's local shard, and its sizes.
struct WrittenBox {
  size_t tensor = 0;
  int64_t rank = 0;
  Sizes offsets;
  Sizes local_offsets;
  Sizes sizes;
  /// Index of the rank's file. A file has at most one box of each tensor.
  int64_t file = 0;
};

struct WritePlan {
  std::vector<WrittenBox> boxes; // by tensor
  int64_t files = 1;             // maximum per rank
};

/// Assigns every element to exactly one rank. Among several ranks that hold an
/// element, the rank with the fewest bytes so far writes it. Large blocks of
/// such elements are split between several ranks.
WritePlan plan_writes(const std::vector<HeldTensor>& tensors, int64_t ranks);

} // namespace dtensor::detail
