// SPDX-License-Identifier: BSD-3-Clause
// Where the parts of several tensors lie in one buffer: rank after rank, and
// of each rank tensor after tensor, as collectives bring and take them.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// A tensor of these sizes, cut along `dim`: cuts[r] is rank r's.
struct CutTensor {
  Sizes sizes;
  int64_t dim = 0;
  std::vector<Interval> cuts;

  Sizes part_sizes(size_t rank) const;
};

class FlatLayout {
 public:
  /// Each rank's parts come after `header` elements.
  FlatLayout(std::vector<CutTensor> tensors, size_t ranks, int64_t header = 0);

  /// Elements of each rank, header included, and of all of them.
  const Sizes& rank_sizes() const {
    return rank_sizes_;
  }
  int64_t size() const {
    return size_;
  }
  /// Elements of the tensors, each whole, and where one begins among them.
  int64_t whole_size() const {
    return whole_size_;
  }
  int64_t whole_begin(size_t tensor) const {
    return whole_begins_[tensor];
  }
  const CutTensor& tensor(size_t i) const {
    return tensors_[i];
  }
  size_t count() const {
    return tensors_.size();
  }

  /// Where the part of a tensor begins in its rank's piece of the buffer.
  int64_t begin_in_rank(size_t tensor, size_t rank) const {
    return begins_[rank][tensor];
  }
  /// The header of a rank in `buffer`.
  at::Tensor header(const at::Tensor& buffer, size_t rank) const;

  /// From the buffer to contiguous tensors, and back. An undefined tensor
  /// counts as zeros. Casts where dtypes differ.
  void unpack(const at::Tensor& buffer, at::TensorList wholes) const;
  void pack(at::TensorList wholes, const at::Tensor& buffer) const;

 private:
  template <class Copy>
  void for_each_part(const Copy& copy) const;

  std::vector<CutTensor> tensors_;
  int64_t header_;
  Sizes rank_sizes_;
  Sizes rank_begins_;
  std::vector<std::vector<int64_t>> begins_; // [rank][tensor]
  std::vector<int64_t> whole_begins_;
  int64_t size_ = 0;
  int64_t whole_size_ = 0;
};

} // namespace dtensor::detail
