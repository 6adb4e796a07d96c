// SPDX-License-Identifier: BSD-3-Clause
// AsyncMeeting: one asynchronous collective.
//
// Members leave what they give, tensors that nobody will change any more, and
// go on. Whoever wants its result and finds that all have joined computes it
// from there; the tensors live until the last of them has done so or has lost
// interest. An all_reduce is cut into blocks, which the members that want it
// share between them, so that one that comes late finds its result done.
#pragma once

#include <dtensor/comm/assumed_shapes_impl.h>
#include <dtensor/comm/call_impl.h>
#include <dtensor/layout/shard_math.h>

#include <atomic>
#include <memory>
#include <vector>

namespace dtensor::detail {

class AsyncMeeting {
 public:
  explicit AsyncMeeting(int64_t members);

  /// Leaves `call`, with what the member took for granted so far.
  void join(int64_t member, Call call, AssumedShapes& assumed);
  bool has_joined(int64_t member) const {
    return seats_[static_cast<size_t>(member)].joined.load();
  }
  /// Whether all have joined. Only then is there more than one's own call.
  bool complete() const;
  const Call& call(int64_t member) const {
    return seats_[static_cast<size_t>(member)].call;
  }
  const Calls& calls() const {
    return calls_;
  }

  /// Reduces blocks that nobody has begun, until there are none; others may
  /// still be at theirs. Throws what a block throws, and the collective has
  /// failed then.
  void reduce_blocks(int64_t member);
  /// Whether it has ended, well or not.
  bool is_reduced() const {
    return blocks_done_.load() >= blocks() || failed_.load();
  }
  bool has_failed() const {
    return failed_.load();
  }

 private:
  struct Seat {
    Call call;
    AssumedShapes assumed;
    std::atomic<bool> joined{false};
  };

  int64_t numel() const {
    return calls_[0]->output.numel();
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
