// SPDX-License-Identifier: BSD-3-Clause
// SharedArena: a member's shared memory for results that other members help to
// write.
//
// In a long all_reduce or all_gather, every member writes its slice directly
// into the results of all members. These results therefore lie in the shared
// segment, which lives as long as any of them. If the arena is full, results
// are allocated elsewhere, and each member copies the others' slices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/comm/shared_memory/shared_channel_impl.h>
#include <dtensor/comm/shared_memory/shared_segment_impl.h>

#include <map>
#include <memory>
#include <mutex>

namespace dtensor::detail {

class SharedArena : public std::enable_shared_from_this<SharedArena> {
 public:
  /// Manages `bytes` bytes of the segment, from `begin` on.
  SharedArena(
      std::shared_ptr<const SharedSegment> segment,
      std::byte* begin,
      int64_t bytes);

  /// Returns a contiguous tensor in the arena; undefined if the arena is full.
  /// The memory is freed with the tensor.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);
  /// Returns the offset of an arena tensor from the start of the arena.
  int64_t offset(const at::Tensor& tensor) const {
    return static_cast<const std::byte*>(tensor.const_data_ptr()) - begin_;
  }

 private:
  std::byte* take_block(int64_t bytes);
  void give_back(std::byte* begin, int64_t bytes);

  const std::shared_ptr<const SharedSegment> segment_;
  std::byte* const begin_;
  const int64_t bytes_;
  std::mutex mutex_;
  /// Free blocks: address and length. No two blocks are adjacent.
  std::map<std::byte*, int64_t> free_;
};

/// Addresses of the members' results in a collective, for members that write
/// directly into the results of others.
class PeerResults {
 public:
  explicit PeerResults(const SharedChannel& channel) : channel_(channel) {}

  /// Publishes this member's result before a stage is posted. `result` is in
  /// the arena or undefined.
  void show(const SharedArena& arena, const at::Tensor& result) const;
  /// Reads the addresses of all results, which have `bytes` bytes. Call it when
  /// the stage is met. Throws if a result is not within its arena.
  void find(int64_t bytes);

  /// Returns the address of a member's result; null if it is not in an arena.
  std::byte* of(int64_t member) const {
    return all_[static_cast<size_t>(member)];
  }
  bool all_in_arenas() const;

 private:
  std::byte* notice(int64_t member) const {
    return channel_.buffer(SharedChannel::Buffer::kNotice, member);
  }

  const SharedChannel& channel_;
  c10::SmallVector<std::byte*, 8> all_;
};

} // namespace dtensor::detail
