// SPDX-License-Identifier: BSD-3-Clause
// Which rank writes which elements: a pure function of layouts, so that all
// ranks know it of all without a message.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// A tensor as those who save it hold it. Of each mesh that has it, and these
/// are alike, `meshes` has the ranks in its order, as positions among those who
/// save: the rows of a larger mesh, say, of which each has the whole tensor.
struct HeldTensor {
  at::ScalarType dtype = at::kFloat;
  Sizes sizes;
  std::vector<int64_t> mesh_shape;
  Placements placements;
  std::vector<std::vector<int64_t>> meshes;
};

/// A box of tensor number `tensor` that `rank` writes: where it begins in the
/// tensor and in the rank's part, and its sizes.
struct WrittenBox {
  size_t tensor = 0;
  int64_t rank = 0;
  Sizes offsets;
  Sizes local_offsets;
  Sizes sizes;
  /// Which of the rank's files: one has a box of each tensor.
  int64_t file = 0;
};

struct WritePlan {
  std::vector<WrittenBox> boxes; // by tensor
  int64_t files = 1;             // that a rank has at most
};

/// Every element once. What several ranks hold is written by the one with
/// least to write, or, where it is large, cut between several.
WritePlan plan_writes(const std::vector<HeldTensor>& tensors, int64_t ranks);

} // namespace dtensor::detail
