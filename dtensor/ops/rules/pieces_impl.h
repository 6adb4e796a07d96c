// SPDX-License-Identifier: BSD-3-Clause
// A dimension that consists of equal pieces, each of which is cut over the
// ranks: StridedShard(d, pieces), as the fused weight of q, k and v has it, of
// which every rank holds a part of each. Taking whole pieces out of it, or
// putting some together, needs no communication.
#pragma once

#include <dtensor/ops/op_call.h>
#include <dtensor/ops/strategy.h>

#include <cstdint>
#include <optional>

namespace dtensor::detail {

/// How a dimension is cut.
struct Pieces {
  int64_t count = 1;
  int64_t size = 0; // of each, whole
  int64_t unit = 1; // in which each is cut
};

/// The pieces of dimension `dim` of `input`, if this mesh dimension alone cuts
/// it, and into equal ones. A Shard is one piece.
std::optional<Pieces>
pieces_of(const OpInput& input, int64_t mesh_dim, int64_t dim);

/// Dimension `dim` as `count` pieces like these.
Placement in_pieces(int64_t dim, int64_t count, const Pieces& like);

/// The same of a layout in which at most one mesh dimension cuts `dim`; nothing
/// on a rank outside the mesh, which has no part.
struct LocalPieces {
  Pieces whole;
  int64_t local = 0; // this rank's part of each
};
std::optional<LocalPieces> local_pieces(const Spec& spec, int64_t dim);

} // namespace dtensor::detail
