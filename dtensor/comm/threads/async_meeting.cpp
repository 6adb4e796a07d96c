// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/async_meeting_impl.h>

#include <dtensor/comm/threads/combine_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {

AsyncMeeting::AsyncMeeting(int64_t members)
    : seats_(static_cast<size_t>(members)) {
  for (const Seat& seat : seats_) {
    calls_.push_back(&seat.call);
  }
}

void AsyncMeeting::join(int64_t member, Call call, AssumedShapes& assumed) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  seat.call = std::move(call);
  assumed.drop_reported_expired();
  if (!assumed.empty()) {
    seat.assumed = std::exchange(assumed, {});
    seat.call.assumed = &seat.assumed;
  }
  seat.joined.store(true);
}

bool AsyncMeeting::complete() const {
  return std::ranges::all_of(
      seats_, [](const Seat& seat) { return seat.joined.load(); });
}

// Chooses blocks small enough that the wait for the last block is short, and
// large enough that the cost of starting a block is negligible.
int64_t AsyncMeeting::block_size() const {
  constexpr int64_t kBytes = 1 << 16;
  const at::Tensor& output = calls_[0]->out;
  return output.is_cpu() ? kBytes / output.element_size()
                         : std::max<int64_t>(numel(), 1);
}

int64_t AsyncMeeting::blocks() const {
  return (numel() + block_size() - 1) / block_size();
}

void AsyncMeeting::reduce_blocks(int64_t member) {
  const int64_t count = blocks();
  try {
    for (int64_t block = next_block_.fetch_add(1); block < count;
         block = next_block_.fetch_add(1)) {
      const int64_t begin = block * block_size();
      reduce_range(
          calls_, member, {begin, std::min(begin + block_size(), numel())});
      finish_device_work(calls_[static_cast<size_t>(member)]->out);
      blocks_done_.fetch_add(1);
    }
  } catch (...) {
    failed_.store(true);
    throw;
  }
}

} // namespace dtensor::detail
