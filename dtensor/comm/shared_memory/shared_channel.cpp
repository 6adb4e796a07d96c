// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shared_memory/shared_channel_impl.h>

#include <dtensor/comm/collective_timeout.h>

#include <unistd.h>
#include <algorithm>
#include <utility>

namespace dtensor::detail {

SharedChannel::SharedChannel(
    std::shared_ptr<SharedSegment> segment,
    const GroupMembers& members,
    int64_t block_bytes,
    std::chrono::milliseconds timeout)
    : segment_(std::move(segment)),
      members_(members),
      layout_(
          segment_->data(),
          static_cast<int64_t>(members.ranks.size()),
          block_bytes),
      timeout_(std::min(timeout, kLongestTimeout)),
      process_(this_process()) {}

// A forked child also has this object, but does not own the seat.
SharedChannel::~SharedChannel() {
  SharedSeat& mine = layout_.seat(rank());
  if (getpid() == process_.pid && mine.state.load() == SharedSeat::kTaken) {
    mine.state.store(SharedSeat::kLeft);
    wake_all();
  }
}

void SharedChannel::arrive() {
  SharedSeat& mine = layout_.seat(rank());
  mine.process = process_;
  sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
  mine.state.store(SharedSeat::kTaken);
  wake_all();
  const auto missing = [&](int64_t member) {
    return layout_.seat(member).state.load() == SharedSeat::kEmpty;
  };
  wait(
      [&] {
        for (int64_t member = 0; member < size(); ++member) {
          if (missing(member)) {
            return false;
          }
        }
        return true;
      },
      missing);
  segment_->close_descriptor();
  one_core_per_member_ = has_core_per_member();
}

bool SharedChannel::has_core_per_member() const {
  cpu_set_t all{};
  for (int64_t member = 0; member < size(); ++member) {
    CPU_OR(&all, &all, &layout_.seat(member).cores);
  }
  return size() <= CPU_COUNT(&all);
}

void SharedChannel::enter(CollectiveKind kind) {
  name_ = to_string(kind);
  is_message_ = kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
  number_ += is_message_ ? 0 : 1;
  check_intact();
}

void SharedChannel::post(const SharedSignature& signature) {
  layout_.notice(rank(), stage_).signature = signature;
  post();
}

void SharedChannel::post() {
  layout_.notice(rank(), stage_).stage.store(stage_, std::memory_order_release);
}

void SharedChannel::meet() {
  const auto missing = [&](int64_t member) {
    return layout_.notice(member, stage_)
               .stage.load(std::memory_order_acquire) < stage_;
  };
  const auto complete = [&] {
    for (int64_t member = 0; member < size(); ++member) {
      if (missing(member)) {
        return false;
      }
    }
    return true;
  };
  wait(complete, missing);
  // The last member to post completes the stage and wakes the members that
  // sleep.
  wake_all();
}

bool SharedChannel::agreed() const {
  const SharedSignature& first = layout_.notice(0, stage_).signature;
  for (int64_t member = 1; member < size(); ++member) {
    if (!(layout_.notice(member, stage_).signature == first)) {
      return false;
    }
  }
  return true;
}

} // namespace dtensor::detail
