// SPDX-License-Identifier: BSD-3-Clause
// ShownResults: where the results of a collective lie, for members that write
// to those of others.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/comm/processes/shared_arena_impl.h>
#include <dtensor/comm/processes/shared_channel_impl.h>

namespace dtensor::detail {

class ShownResults {
 public:
  explicit ShownResults(const SharedChannel& channel) : channel_(channel) {}

  /// Before a stage is posted: this member's result, which is in its arena, or
  /// an undefined tensor.
  void show(const SharedArena& arena, const at::Tensor& result) const;
  /// When all have met.
  void find();

  /// A member's; null if it is in no arena.
  std::byte* of(int64_t member) const {
    return all_[static_cast<size_t>(member)];
  }
  bool are_all_there() const;

 private:
  std::byte* notice(int64_t member) const {
    return channel_.room(SharedChannel::Room::kNotice, member);
  }

  const SharedChannel& channel_;
  c10::SmallVector<std::byte*, 8> all_;
};

} // namespace dtensor::detail
