// SPDX-License-Identifier: BSD-3-Clause
// FlatLayout: the offsets of the shards of several tensors in one flat buffer.
// The buffer is ordered by rank, and within a rank by tensor, as collectives
// require. The buffer has the dtype of the tensors; tensors of different dtypes
// share a buffer of bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// Sizes of an unsharded tensor and its shards along `dim`. shards[r] is the
/// range of rank r.
struct ShardedSizes {
  Sizes sizes;
  int64_t dim = 0;
  std::vector<Interval> shards;

  Sizes shard_sizes(size_t rank) const;
};

class FlatLayout {
 public:
  /// Reserves `header` elements in front of each rank's shards.
  FlatLayout(std::vector<ShardedSizes> tensors, size_t ranks, int64_t header);
  /// Lays out a buffer of bytes for tensors of these dtypes.
  FlatLayout(
      std::vector<ShardedSizes> tensors,
      size_t ranks,
      std::vector<at::ScalarType> dtypes);

  /// True for a buffer of bytes. All sizes and offsets below are then in bytes,
  /// otherwise in elements.
  bool is_in_bytes() const {
    return !dtypes_.empty();
  }
  /// Sizes: per rank (header included), and of the buffer.
  const Sizes& rank_sizes() const {
    return rank_sizes_;
  }
  int64_t size() const {
    return size_;
  }
  /// Total size of all unsharded tensors, and the offset of each tensor among
  /// them.
  int64_t unsharded_size() const {
    return unsharded_size_;
  }
  int64_t unsharded_offset(size_t tensor) const {
    return unsharded_begins_[tensor];
  }
  const ShardedSizes& tensor(size_t i) const {
    return tensors_[i];
  }
  size_t count() const {
    return tensors_.size();
  }

  /// Offset of a tensor's shard within its rank's section of the buffer.
  int64_t begin_in_rank(size_t tensor, size_t rank) const {
    return begins_[rank][tensor];
  }
  /// Returns the header of a rank in `buffer`.
  at::Tensor header(const at::Tensor& buffer, size_t rank) const;

  /// Copy between the buffer and contiguous unsharded tensors. Elements are
  /// cast if dtypes differ. pack() writes zeros for an undefined tensor, and
  /// needs a buffer of elements.
  void unpack(const at::Tensor& buffer, at::TensorList unsharded) const;
  void pack(at::TensorList unsharded, const at::Tensor& buffer) const;
  /// Returns the section of a rank in a buffer of bytes, made from the rank's
  /// shards.
  at::Tensor section(at::TensorList shards, size_t rank) const;

 private:
  void lay_out(size_t ranks);
  int64_t space_for(size_t tensor, int64_t elements) const;
  at::Tensor typed(const at::Tensor& buffer, size_t tensor) const;
  int64_t elements_at(int64_t offset, size_t tensor) const;
  template <class Copy>
  void for_each_shard(const Copy& copy) const;

  std::vector<ShardedSizes> tensors_;
  std::vector<at::ScalarType> dtypes_; // empty: a buffer of elements
  int64_t header_ = 0;
  Sizes rank_sizes_;
  Sizes rank_begins_;
  std::vector<std::vector<int64_t>> begins_; // [rank][tensor]
  std::vector<int64_t> unsharded_begins_;
  int64_t size_ = 0;
  int64_t unsharded_size_ = 0;
};

} // namespace dtensor::detail
