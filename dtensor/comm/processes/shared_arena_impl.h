// SPDX-License-Identifier: BSD-3-Clause
// SharedArena: memory of one member for results that others help to write.
//
// A long all_reduce or all_gather is written by all members, each its part, to
// the results of all. So these lie in the segment, which lives as long as any
// of them. Where there is no room, results lie elsewhere, and each member
// copies what others have made.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/processes/shared_segment_impl.h>

#include <map>
#include <memory>
#include <mutex>

namespace dtensor::detail {

class SharedArena : public std::enable_shared_from_this<SharedArena> {
 public:
  /// Manages `bytes` at `begin`, which is in the segment.
  SharedArena(
      std::shared_ptr<const SharedSegment> segment,
      std::byte* begin,
      int64_t bytes);

  /// A contiguous tensor, in the arena while it lives; undefined if there is no
  /// room.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);
  /// Where a tensor of the arena begins in it.
  int64_t offset(const at::Tensor& tensor) const {
    return static_cast<const std::byte*>(tensor.const_data_ptr()) - begin_;
  }

 private:
  std::byte* take(int64_t bytes);
  void give_back(std::byte* begin, int64_t bytes);

  const std::shared_ptr<const SharedSegment> segment_;
  std::byte* const begin_;
  const int64_t bytes_;
  std::mutex mutex_;
  /// What is free: where, and how long. No two touch.
  std::map<std::byte*, int64_t> free_;
};

} // namespace dtensor::detail
