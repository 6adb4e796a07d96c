// SPDX-License-Identifier: BSD-3-Clause
// Dimensions that consist of equal blocks, each sharded over the ranks:
// StridedShard(d, blocks). An example is the fused weight of q, k and v, where
// every rank holds a shard of each block. Selecting complete blocks from the
// dimension, or joining blocks, needs no communication.
#pragma once

#include <dtensor/ops/op_call.h>
#include <dtensor/ops/strategy.h>

#include <cstdint>
#include <optional>

namespace dtensor::detail {

/// Sharding of a dimension into blocks.
struct DimBlocks {
  int64_t count = 1;
  int64_t size = 0; // global size of each block
  int64_t unit = 1; // unit at which each block is sharded
};

/// Returns true if this mesh dimension, and no other, shards `dim` of `input`.
bool is_sharded_alone(const OpInput& input, int64_t mesh_dim, int64_t dim);

/// Returns the blocks of dimension `dim` of `input`. Empty unless this mesh
/// dimension alone shards the dimension, into equal blocks. A Shard has a
/// single block.
std::optional<DimBlocks>
blocks_of_dim(const OpInput& input, int64_t mesh_dim, int64_t dim);

/// Returns true if this mesh dimension alone shards `dim` of `input`, as a
/// Shard: each rank has one range of rows.
bool has_ranges(const OpInput& input, int64_t mesh_dim, int64_t dim);

/// Returns the placement of dimension `dim` with `count` blocks like `like`.
Placement in_blocks(int64_t dim, int64_t count, const DimBlocks& like);

/// Blocks of a dimension that at most one mesh dimension shards, with the local
/// size of each. local_blocks() is empty on a rank outside the mesh, which has
/// no shard.
struct LocalBlocks {
  DimBlocks global;
  int64_t local = 0; // this rank's share of each
};
std::optional<LocalBlocks> local_blocks(const Spec& spec, int64_t dim);

// Strategies of operators on several operands that only move elements.

/// Adds the strategy for operands that are Partial with the same op or
/// replicated, which become Partial without communication. The strategy
/// requires that terms are not rounded or wrapped when they are converted to
/// the dtype of the result.
void add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies);

} // namespace dtensor::detail
