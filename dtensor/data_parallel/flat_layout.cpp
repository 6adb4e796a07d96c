// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/flat_layout_impl.h>

#include <cstring>
#include <utility>

namespace dtensor::detail {
namespace {

// True if each shard is one contiguous range of the tensor.
bool is_range(const ShardedSizes& tensor) {
  return tensor.dim == 0 || tensor.shards.size() == 1;
}

int64_t row_size(const ShardedSizes& tensor) {
  int64_t size = 1;
  for (size_t d = 1; d < tensor.sizes.size(); ++d) {
    size *= tensor.sizes[d];
  }
  return size;
}

// Copies elements [from, from + count) of `source` to [to, to + count) of
// `target`. Both are contiguous.
void copy_range(
    const at::Tensor& target,
    int64_t to,
    const at::Tensor& source,
    int64_t from,
    int64_t count) {
  if (count == 0) {
    return;
  }
  if (target.is_cpu() && source.is_cpu() &&
      target.scalar_type() == source.scalar_type()) {
    const auto bytes = static_cast<int64_t>(target.element_size());
    std::memcpy(
        static_cast<char*>(target.mutable_data_ptr()) + to * bytes,
        static_cast<const char*>(source.const_data_ptr()) + from * bytes,
        static_cast<size_t>(count * bytes));
    return;
  }
  target.view({-1})
      .narrow(0, to, count)
      .copy_(source.view({-1}).narrow(0, from, count));
}

} // namespace

Sizes ShardedSizes::shard_sizes(size_t rank) const {
  auto part = sizes;
  part[static_cast<size_t>(dim)] = shards[rank].size();
  return part;
}

FlatLayout::FlatLayout(
    std::vector<ShardedSizes> tensors,
    size_t ranks,
    int64_t header)
    : tensors_(std::move(tensors)),
      header_(header),
      begins_(ranks) {
  for (size_t rank = 0; rank < ranks; ++rank) {
    int64_t begin = header;
    for (const auto& tensor : tensors_) {
      begins_[rank].push_back(begin);
      begin += numel(tensor.shard_sizes(rank));
    }
    rank_begins_.push_back(size_);
    rank_sizes_.push_back(begin);
    size_ += begin;
  }
  for (const auto& tensor : tensors_) {
    unsharded_begins_.push_back(unsharded_size_);
    unsharded_size_ += numel(tensor.sizes);
  }
}

at::Tensor FlatLayout::header(const at::Tensor& buffer, size_t rank) const {
  return buffer.narrow(0, rank_begins_[rank], header_);
}

// Calls copy(tensor, rank, offset of the shard in the buffer).
template <class Copy>
void FlatLayout::for_each_part(const Copy& copy) const {
  for (size_t rank = 0; rank < begins_.size(); ++rank) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].shards[rank].size() > 0) {
        copy(i, rank, rank_begins_[rank] + begins_[rank][i]);
      }
    }
  }
}

// Copies a shard along dimension 0 as one contiguous range, which is faster
// than a strided copy.
void FlatLayout::unpack(const at::Tensor& buffer, at::TensorList unsharded)
    const {
  for_each_part([&](size_t i, size_t rank, int64_t begin) {
    const auto& t = tensors_[i];
    const auto& shard = t.shards[rank];
    const auto sizes = t.shard_sizes(rank);
    const auto count = numel(sizes);
    if (is_range(t)) {
      copy_range(unsharded[i], shard.begin * row_size(t), buffer, begin, count);
    } else {
      unsharded[i]
          .narrow(t.dim, shard.begin, shard.size())
          .copy_(buffer.narrow(0, begin, count).view(sizes));
    }
  });
}

void FlatLayout::pack(at::TensorList unsharded, const at::Tensor& buffer)
    const {
  for_each_part([&](size_t i, size_t rank, int64_t begin) {
    const auto& t = tensors_[i];
    const auto& shard = t.shards[rank];
    const auto sizes = t.shard_sizes(rank);
    const auto count = numel(sizes);
    const auto& tensor = unsharded[i];
    if (!tensor.defined()) {
      buffer.narrow(0, begin, count).zero_();
    } else if (is_range(t) && tensor.is_contiguous()) {
      copy_range(buffer, begin, tensor, shard.begin * row_size(t), count);
    } else {
      buffer.narrow(0, begin, count)
          .view(sizes)
          .copy_(tensor.narrow(t.dim, shard.begin, shard.size()));
    }
  });
}

} // namespace dtensor::detail
