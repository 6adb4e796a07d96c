// SPDX-License-Identifier: BSD-3-Clause
// Sharing: how the ranks of a group share out one dimension of a tensor, and
// the positions along it that are taken of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

using Positions = std::vector<int64_t>;

/// `t` at these positions of dimension `dim`, in that order; a view where they
/// are one interval.
at::Tensor take(const at::Tensor& t, int64_t dim, const Positions& positions);
at::Tensor take(const at::Tensor& t, int64_t dim, const Intervals& intervals);

/// The order of `values` when sorted: values[order[0]] is the least.
Positions sorted_order(const Positions& values);

/// How the ranks of a group share out the positions [0, size) of one dimension
/// of the tensor that each of them has when the group's mesh dimension is R.
class Sharing {
 public:
  Sharing(const Placement& cut, int64_t size, int64_t ranks)
      : cut_(cut),
        size_(size),
        ranks_(ranks) {}

  int64_t dim() const {
    return cut_.dim();
  }
  int64_t size() const {
    return size_;
  }
  int64_t ranks() const {
    return ranks_;
  }
  /// Whether the parts of ranks 0, 1, ... follow each other.
  bool in_order() const {
    return cut_.is_shard();
  }
  /// Whether, besides, they are those of torch.chunk.
  bool is_chunk() const {
    return cut_.is_chunk();
  }
  /// Whether they follow each other and are others.
  bool in_units() const {
    return in_order() && !is_chunk();
  }

  Intervals part(int64_t rank) const;
  Positions positions(int64_t rank) const;
  /// The parts of all ranks one after the other.
  Positions all_positions() const;
  /// How many positions each rank has.
  Sizes sizes() const;
  /// Whose each position is.
  Positions owners() const;

  /// The whole tensor, from the parts of all ranks one after the other.
  at::Tensor put_back(const at::Tensor& parts) const;

 private:
  Placement cut_;
  int64_t size_;
  int64_t ranks_;
};

} // namespace dtensor::detail
