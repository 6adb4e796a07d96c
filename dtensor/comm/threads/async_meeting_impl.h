// SPDX-License-Identifier: BSD-3-Clause
// AsyncMeeting: one asynchronous collective.
//
// Members leave their inputs, which no code will change any more, and go on. A
// member that waits computes its result from the inputs once all have joined.
// The tensors live until every member has computed its result or dropped its
// handle. An all_reduce is split into blocks, shared between the waiting
// members; a member that waits late finds its result complete.
#pragma once

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/layout/shard_math.h>

#include <atomic>
#include <memory>
#include <vector>

namespace dtensor::detail {

class AsyncMeeting {
 public:
  explicit AsyncMeeting(int64_t members);

  /// Stores `call`, and the member's notes so far.
  void join(int64_t member, Call call, RankNotes& notes);
  bool has_joined(int64_t member) const {
    return seats_[static_cast<size_t>(member)].joined.load();
  }
  /// Returns true if all members have joined. Until then a member may read only
  /// its own call.
  bool complete() const;
  const Call& call(int64_t member) const {
    return seats_[static_cast<size_t>(member)].call;
  }
  const Calls& calls() const {
    return calls_;
  }

  /// Reduces blocks that no member has started, until none is left. Other
  /// members may still be reducing theirs. Rethrows a block's error and marks
  /// the collective as failed.
  void reduce_blocks(int64_t member);
  /// Returns true if the reduction has ended, successfully or not.
  bool is_reduced() const {
    return blocks_done_.load() >= blocks() || failed_.load();
  }
  bool has_failed() const {
    return failed_.load();
  }

 private:
  struct Seat {
    Call call;
    RankNotes notes;
    std::atomic<bool> joined{false};
  };

  int64_t numel() const {
    return calls_[0]->out.numel();
  }
  int64_t block_size() const;
  int64_t blocks() const;

  std::vector<Seat> seats_;
  Calls calls_;
  std::atomic<int64_t> next_block_{0};
  std::atomic<int64_t> blocks_done_{0};
  std::atomic<bool> failed_{false};
};

using AsyncMeetingPtr = std::shared_ptr<AsyncMeeting>;

} // namespace dtensor::detail
