// SPDX-License-Identifier: BSD-3-Clause
// PeerResults: addresses of the members' results in a collective, for members
// that write directly into the results of others.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/comm/shared_memory/shared_arena_impl.h>
#include <dtensor/comm/shared_memory/shared_channel_impl.h>

namespace dtensor::detail {

class PeerResults {
 public:
  explicit PeerResults(const SharedChannel& channel) : channel_(channel) {}

  /// Publishes this member's result before a stage is posted. `result` is in
  /// the arena or undefined.
  void show(const SharedArena& arena, const at::Tensor& result) const;
  /// Reads the addresses of all results. Call it when the stage is met.
  void find();

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
