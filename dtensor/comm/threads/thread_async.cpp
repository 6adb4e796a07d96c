// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous collectives of a ThreadBackend.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>
#include <dtensor/comm/world.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns `tensor` if the collective owns it alone, else a copy. Peers read the
// tensor after this rank has gone on, so no other reference may be able to
// write to it.
at::Tensor own_or_copy(at::Tensor tensor) {
  const bool is_ours = is_sole_owner(tensor);
  const bool is_readable =
      tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  return is_ours && is_readable ? std::move(tensor)
                                : copy_to(tensor.device(), tensor);
}

Call call_to_join(Collective&& c) {
  Call call = call_with_tensors(c);
  if (c.received.empty()) {
    call.inputs.clear();
    call.inputs.push_back(own_or_copy(std::move(c.inputs[0])));
  }
  if (call.kind == CollectiveKind::kAllReduce && !call.out.defined()) {
    call.out = empty_result(call.input().sizes(), call.input().options());
  }
  return call;
}

} // namespace

AsyncMeeting::AsyncMeeting(int64_t members)
    : seats_(static_cast<size_t>(members)) {
  for (const Seat& seat : seats_) {
    calls_.push_back(&seat.call);
  }
}

void AsyncMeeting::join(int64_t member, Call call, RankNotes& notes) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  seat.call = std::move(call);
  notes.drop_reported_expired();
  if (!notes.empty()) {
    seat.notes = notes.take_tensors();
    seat.call.notes = &seat.notes;
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

InFlight ThreadBackend::start(Collective&& c) {
  const PlainTensors guard;
  Call call = call_to_join(std::move(c));
  finish_device_work(call);
  finish_device_work(call.out);
  return {
      nullptr,
      [self = shared_from_this(),
       owner = this_world(),
       meeting = channel_->join(rank(), std::move(call))] {
        return self->finish(*owner, *meeting);
      }};
}

// Allows the rank that started the collective. Once this rank has ended, any
// thread may fetch the result if all members had joined.
at::Tensor ThreadBackend::finish(const World& owner, AsyncMeeting& meeting) {
  if (!owner.has_ended() || !meeting.complete()) {
    check_owner(
        "Pending",
        [&] { return "a result in flight on \"" + label() + "\""; },
        &owner);
  }
  const PlainTensors guard;
  return noting_place(
      meeting.call(rank()).name(), [&] { return result_of(meeting); });
}

at::Tensor ThreadBackend::result_of(AsyncMeeting& meeting) {
  channel_->await(rank(), label(), meeting);
  const Calls& calls = meeting.calls();
  const Call& mine = meeting.call(rank());
  try {
    check_agreement(calls, members().ranks, label());
  } catch (...) {
    keep_contradiction(meeting);
    throw;
  }
  if (mine.notes != nullptr) {
    channel_->notes(rank()).note_agreement(*mine.notes);
  }
  switch (mine.kind) {
    case CollectiveKind::kAllReduce:
      channel_->reduce(rank(), meeting);
      return mine.out;
    case CollectiveKind::kAllGather:
      return gathered(calls, rank());
    case CollectiveKind::kReduceScatter:
      return reduce_scattered(calls, rank());
    case CollectiveKind::kAllToAll:
      return exchanged(calls, rank());
    default:
      TORCH_INTERNAL_ASSERT(false, "not asynchronous: ", mine.name());
  }
}

// Restores the notes after a contradiction. Assumed tensors still exist, so the
// next collective must report the contradiction again.
void ThreadBackend::keep_contradiction(const AsyncMeeting& meeting) {
  const auto* const mine = meeting.call(rank()).notes;
  if (mine != nullptr &&
      contradiction(meeting.calls(), members().ranks, label(), /*fit=*/true)) {
    auto& notes = channel_->notes(rank());
    notes.restore_tensors(*mine);
    notes.mark_reported();
  }
}

} // namespace dtensor::detail
