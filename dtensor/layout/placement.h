// SPDX-License-Identifier: BSD-3-Clause
// Placement: how a tensor is distributed over one mesh dimension.
//
// A tensor on an n-D mesh has n placements, one per mesh dimension, applied
// from left to right. With {Shard(0), Shard(0)} the first mesh dimension shards
// tensor dimension 0, and the second shards each of those shards.
//
//   // Rows sharded over "dp", replicated over "tp".
//   Placements p = {Shard(0), Replicate()};
//
// Python: torch.distributed.tensor.placement_types.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <dtensor/api.h>
#include <dtensor/layout/reduce_op.h>

#include <cstdint>
#include <string_view>

namespace dtensor {

/// The distribution of a tensor over one mesh dimension: a small comparable
/// value, constructed by Shard, StridedShard, Replicate and Partial below.
class Placement {
 public:
  /// The four kinds of placement.
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial };

  /// Constructs Replicate.
  constexpr Placement() = default;

  /// Returns the kind, which the predicates below test.
  constexpr Kind kind() const {
    return kind_;
  }
  constexpr bool is_replicate() const {
    return kind_ == Kind::kReplicate;
  }
  /// True for Shard, with or without a unit. False for StridedShard, as in
  /// Python.
  constexpr bool is_shard() const {
    return kind_ == Kind::kShard;
  }
  constexpr bool is_shard(int64_t dim) const {
    return is_shard() && dim_ == dim;
  }
  /// True for StridedShard only.
  constexpr bool is_strided_shard() const {
    return kind_ == Kind::kStridedShard;
  }
  /// True for a Shard without a unit, which shards as torch.chunk does.
  constexpr bool is_chunk() const {
    return is_shard() && unit_ == 1;
  }
  /// True for Shard and StridedShard: each rank holds a shard along `dim()`.
  constexpr bool is_sharded() const {
    return is_shard() || is_strided_shard();
  }
  constexpr bool is_sharded(int64_t dim) const {
    return is_sharded() && dim_ == dim;
  }
  /// True for Partial, with any reduction or with `op`.
  constexpr bool is_partial() const {
    return kind_ == Kind::kPartial;
  }
  constexpr bool is_partial(ReduceOp op) const {
    return is_partial() && op_ == op;
  }

  /// The sharded tensor dimension. Only for Shard and StridedShard.
  constexpr int64_t dim() const {
    return dim_;
  }
  /// Number of blocks that a StridedShard splits the dimension into, before
  /// each block is distributed over the ranks.
  constexpr int64_t split_factor() const {
    return split_factor_;
  }
  /// Granularity in elements: shard boundaries lie at multiples of the unit. 1
  /// without a unit.
  constexpr int64_t unit() const {
    return unit_;
  }
  /// The reduction. Only for Partial.
  constexpr ReduceOp reduce_op() const {
    return op_;
  }

  /// Return a copy of this placement with another tensor dimension, or with
  /// another unit.
  constexpr Placement with_dim(int64_t dim) const {
    Placement p = *this;
    p.dim_ = static_cast<int32_t>(dim);
    return p;
  }
  constexpr Placement with_unit(int64_t unit) const {
    Placement p = *this;
    p.unit_ = unit;
    return p;
  }

  friend constexpr bool operator==(const Placement&, const Placement&) =
      default;

  /// Returns a hash, for tables of layouts.
  size_t hash() const {
    return (static_cast<size_t>(kind_) << 60) ^
        (static_cast<size_t>(op_) << 56) ^
        (static_cast<size_t>(static_cast<uint32_t>(dim_)) << 32) ^
        static_cast<size_t>(split_factor_) ^ (static_cast<size_t>(unit_) << 20);
  }

 private:
  constexpr Placement(
      Kind kind,
      ReduceOp op,
      int64_t dim,
      int64_t split_factor,
      int64_t unit = 1)
      : kind_(kind),
        op_(op),
        dim_(static_cast<int32_t>(dim)),
        split_factor_(split_factor),
        unit_(unit) {}

  friend constexpr Placement Shard(int64_t dim);
  friend Placement Shard(int64_t dim, int64_t unit);
  friend Placement
  StridedShard(int64_t dim, int64_t split_factor, int64_t unit);
  friend constexpr Placement Partial(ReduceOp op);

  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  int32_t dim_ = 0;
  int64_t split_factor_ = 1;
  int64_t unit_ = 1;
};

/// Shards tensor dimension `dim` as torch.chunk does: each rank gets ceil(n /
/// ranks) of the n elements, but the last ranks may get fewer or none. Negative
/// dimensions count from the end and are resolved when the tensor is known.
/// Python: torch.distributed.tensor.Shard.
constexpr Placement Shard(int64_t dim) {
  return {Placement::Kind::kShard, ReduceOp::kSum, dim, 1};
}

/// Shards dimension `dim` at multiples of `unit`: torch.chunk distributes
/// ceil(n / unit) units, the last of them possibly shorter. For example, 9
/// heads of 64 features are never split between 2 ranks, which get 5 and 4
/// heads:
///
///   Shard(1, 64)   // of (512, 576): (512, 320) and (512, 256)
///
/// A layout stores the largest unit that yields the same shards, or no unit if
/// Shard(dim) yields them, so equal shardings compare equal. Throws ValueError
/// for a unit below 1. Python has no units.
DTENSOR_API Placement Shard(int64_t dim, int64_t unit);

/// Splits dimension `dim` into `split_factor` blocks, splits each block into
/// one shard per rank at multiples of `unit`, and gives rank r the r-th shard
/// of every block, concatenated. Two situations need a StridedShard: mesh
/// dimensions that shard a tensor dimension from right to left, and a view that
/// joins a sharded dimension to a dimension before it. Throws ValueError for a
/// factor or a unit below 1. Python:
/// torch.distributed.tensor.placement_types._StridedShard, which has no units.
DTENSOR_API Placement
StridedShard(int64_t dim, int64_t split_factor, int64_t unit = 1);

/// Every rank holds the full tensor.
/// Python: torch.distributed.tensor.Replicate.
constexpr Placement Replicate() {
  return {};
}

/// Every rank holds a local tensor of the full shape. The tensor's value is the
/// reduction of the local tensors over the ranks. Throws ValueError for an
/// unknown name of a reduction.
/// Python: torch.distributed.tensor.Partial.
constexpr Placement Partial(ReduceOp op) {
  return {Placement::Kind::kPartial, op, 0, 1};
}
DTENSOR_API Placement Partial(std::string_view reduce_op = "sum");

/// A layout: one placement per mesh dimension.
using Placements = c10::SmallVector<Placement, 4>;
using PlacementsRef = c10::ArrayRef<Placement>;

/// Compares any two ranges of placements. Before 2.13, LibTorch has this
/// operator only for vectors.
inline bool operator==(PlacementsRef a, PlacementsRef b) {
  return a.equals(b);
}

} // namespace dtensor
