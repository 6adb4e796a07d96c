// SPDX-License-Identifier: BSD-3-Clause
// Placement: what one mesh dimension does to a tensor.
//
// A tensor on an n-D mesh has n placements, one per mesh dimension, and they
// are applied from left to right: with {Shard(0), Shard(0)} the first mesh
// dimension cuts tensor dimension 0, and the second cuts each of the pieces.
//
//   Placements p = {Shard(0), Replicate()};   // rows over "dp", whole on "tp"
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

/// What one mesh dimension does to a tensor: a small comparable value, made by
/// Shard, StridedShard, Replicate and Partial below.
class Placement {
 public:
  /// Which of the four it is.
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial };

  /// Replicate.
  constexpr Placement() = default;

  /// Which one it is, and the same as a question.
  constexpr Kind kind() const {
    return kind_;
  }
  constexpr bool is_replicate() const {
    return kind_ == Kind::kReplicate;
  }
  /// True of Shard only, of any unit; a StridedShard is not a Shard (as in
  /// Python).
  constexpr bool is_shard() const {
    return kind_ == Kind::kShard;
  }
  constexpr bool is_shard(int64_t dim) const {
    return is_shard() && dim_ == dim;
  }
  /// True of StridedShard only.
  constexpr bool is_strided_shard() const {
    return kind_ == Kind::kStridedShard;
  }
  /// True of a Shard without a unit: torch.chunk's parts.
  constexpr bool is_chunk() const {
    return is_shard() && unit_ == 1;
  }
  /// True of Shard and StridedShard: each rank holds a part of `dim()`.
  constexpr bool cuts() const {
    return is_shard() || is_strided_shard();
  }
  constexpr bool cuts(int64_t dim) const {
    return cuts() && dim_ == dim;
  }
  /// True of Partial, of any reduction or of this one.
  constexpr bool is_partial() const {
    return kind_ == Kind::kPartial;
  }
  constexpr bool is_partial(ReduceOp op) const {
    return is_partial() && op_ == op;
  }

  /// The tensor dimension that is cut. Only for Shard and StridedShard.
  constexpr int64_t dim() const {
    return dim_;
  }
  /// Into how many pieces a StridedShard cuts before it deals them out.
  constexpr int64_t split_factor() const {
    return split_factor_;
  }
  /// A cut lies at a multiple of so many elements.
  constexpr int64_t unit() const {
    return unit_;
  }
  /// Only for Partial.
  constexpr ReduceOp reduce_op() const {
    return op_;
  }

  /// The same kind of cut (plain or strided, in the same units) on another
  /// tensor dimension, and the same cut in another unit.
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

  /// Mixes into hash tables of layouts.
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

/// Cuts tensor dimension `dim` as torch.chunk does: every rank gets
/// ceil(n / ranks) elements, the last ones fewer or none. Negative dimensions
/// count from the end and are resolved where a tensor is known.
/// Python: torch.distributed.tensor.Shard.
constexpr Placement Shard(int64_t dim) {
  return {Placement::Kind::kShard, ReduceOp::kSum, dim, 1};
}

/// Cuts dimension `dim` at multiples of `unit` alone: the parts are those that
/// torch.chunk makes of ceil(n / unit) units, the last of which may be shorter.
/// So 9 heads of 64 features stay whole on 2 ranks, which get 5 and 4 of them:
///
///   Shard(1, 64)   // of (512, 576): (512, 320) and (512, 256)
///
/// A layout has the largest unit that makes the same parts, and none where they
/// are those of Shard(dim), so equal cuts compare equal. Throws ValueError for
/// a unit below 1. Python has no such cut.
DTENSOR_API Placement Shard(int64_t dim, int64_t unit);

/// Cuts dimension `dim` into `split_factor` pieces, cuts each of them into one
/// part per rank, at multiples of `unit`, and gives rank r the r-th parts,
/// concatenated. It describes a sharding whose mesh dimensions were applied
/// right to left, and what a view makes of a sharded inner dimension. Throws
/// ValueError for a factor or a unit below 1.
/// Python: torch.distributed.tensor.placement_types._StridedShard, which has no
/// units.
DTENSOR_API Placement
StridedShard(int64_t dim, int64_t split_factor, int64_t unit = 1);

/// Every rank holds the whole tensor.
/// Python: torch.distributed.tensor.Replicate.
constexpr Placement Replicate() {
  return {};
}

/// Every rank holds a tensor of full shape; the value is their reduction.
/// Python: torch.distributed.tensor.Partial.
constexpr Placement Partial(ReduceOp op) {
  return {Placement::Kind::kPartial, op, 0, 1};
}
DTENSOR_API Placement Partial(std::string_view reduce_op = "sum");

/// One placement per mesh dimension.
using Placements = c10::SmallVector<Placement, 4>;
using PlacementsRef = c10::ArrayRef<Placement>;

/// Of any two ranges. LibTorch has it since 2.13, and for vectors alone before.
inline bool operator==(PlacementsRef a, PlacementsRef b) {
  return a.equals(b);
}

} // namespace dtensor
