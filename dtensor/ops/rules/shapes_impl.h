// SPDX-License-Identifier: BSD-3-Clause
// Result shapes, strategies, maps of dimensions and passed layouts that many
// rules share.
#pragma once

#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/strategy.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Returns a row-major result.
inline OutputMeta dense(SizesRef sizes, at::ScalarType dtype) {
  return {Sizes(sizes), dtensor::contiguous_strides(sizes), dtype, true};
}

/// Returns a row-major result with this shape and dtype.
inline OutputMeta dense_like(const Spec& spec) {
  return dense(spec.sizes(), spec.dtype());
}

/// Return one row-major result with the shape and dtype of an input.
inline std::vector<OutputMeta> dense_like_first(const OpCall& call) {
  return {dense_like(*call.inputs[0].spec)};
}
inline std::vector<OutputMeta> dense_like_second(const OpCall& call) {
  return {dense_like(*call.inputs[1].spec)};
}

/// Returns true if this rank has elements of a tensor in this layout.
inline bool has_local_elements(const Spec& layout) {
  const auto sizes = layout.local_sizes();
  return std::ranges::find(sizes, 0) == sizes.end();
}

/// Returns a result that is an undefined tensor.
inline OutputMeta undefined() {
  return {{}, {}, at::kFloat, false};
}

/// Returns the strategy with one placement for all results and operands.
inline Strategy all_alike(const OpCall& call, const Placement& p) {
  return {
      Placements(call.outputs.size(), p), Placements(call.inputs.size(), p)};
}

/// Returns the strategy with replicated inputs except those in `inputs`, which
/// gives placements by position.
inline Strategy replicated_except(
    const OpCall& call,
    Placements outputs,
    std::initializer_list<std::pair<size_t, Placement>> inputs) {
  Strategy s{std::move(outputs), Placements(call.inputs.size(), Replicate())};
  for (const auto& [i, placement] : inputs) {
    s.inputs[i] = placement;
  }
  return s;
}

inline Placement partial_sum() {
  return Partial(ReduceOp::kSum);
}

/// Returns true for sums and averages.
inline bool is_sum(const Placement& p) {
  return p.is_partial(ReduceOp::kSum) || p.is_partial(ReduceOp::kAvg);
}

/// Passes the layout of input `i` to the local kernel, even if nothing is
/// redistributed.
inline void keep_layout(const OpCall& call, Decision& decision, size_t i) {
  if (decision.inputs[i] == nullptr) {
    decision.inputs[i] = call.inputs[i].spec;
  }
}

/// Marks a call that the operator itself can run. For another call, passes the
/// layout of the first operand to the local kernel.
inline void
set_plain_call(const OpCall& call, Decision& decision, bool is_plain) {
  decision.is_plain_call = is_plain;
  if (!is_plain) {
    keep_layout(call, decision, 0);
  }
}

/// Marks calls that the operator itself can run, because the dimension "dim" is
/// not sharded.
inline void note_sharded_dim(const OpCall& call, Decision& decision) {
  const auto& spec = decision.layout_of(call, 0);
  set_plain_call(
      call,
      decision,
      spec.dim() == 0 || !spec.is_sharded(call.dim_arg("dim", spec.dim())));
}

/// Like note_sharded_dim(), for several dimensions: those with a negative entry
/// in `map`.
inline void
note_moved_rows(const OpCall& call, Decision& decision, const DimMap& map) {
  const auto& spec = decision.layout_of(call, 0);
  bool is_plain = true;
  for (size_t d = 0; d < map.size(); ++d) {
    is_plain &= map[d] >= 0 || !spec.is_sharded(static_cast<int64_t>(d));
  }
  set_plain_call(call, decision, is_plain);
}

/// Passes the layouts of all DTensors to the local kernel.
inline void keep_layouts(const OpCall& call, Decision& decision) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i].is_plain) {
      keep_layout(call, decision, i);
    }
  }
}

/// Returns the rule of an operator that moves dimensions by `map`.
using MakeMap = DimMap (*)(const OpCall&);
DimRule mapped(MakeMap map);

/// Returns the map that keeps all dimensions except those of argument
/// `dims_arg`.
DimMap without_dims(const OpCall& call, std::string_view dims_arg);

/// Returns the map of an operator that drops the dimensions `dims` of a tensor
/// of `ndim` dimensions.
DimMap map_without(int64_t ndim, const std::vector<int64_t>& dims);

/// Returns the opposite of `map`, for an operand of `ndim` dimensions.
DimMap inverse(const DimMap& map, int64_t ndim);

/// Returns the dimensions of size 1 among `dims`, which squeeze drops.
std::vector<int64_t> squeezed(SizesRef sizes, const std::vector<int64_t>& dims);

/// Adds the strategy for operands that are Partial with the same op or
/// replicated, which become Partial without communication. The strategy
/// requires that terms are not rounded or wrapped when they are converted to
/// the dtype of the result.
void add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies);

// Dimensions that consist of equal blocks, each sharded over the ranks:
// StridedShard(d, blocks). An example is the fused weight of q, k and v, where
// every rank holds a shard of each block. Selecting complete blocks from the
// dimension, or joining blocks, needs no communication.

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

} // namespace dtensor::detail
