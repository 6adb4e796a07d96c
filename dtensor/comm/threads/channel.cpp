// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/channel_impl.h>

#include <utility>

namespace dtensor::detail {
namespace {

constexpr int64_t kClosed = int64_t{1} << 62;

} // namespace

Channel::Channel(ThreadHub& hub, std::vector<int64_t> ranks)
    : hub_(hub),
      ranks_(std::move(ranks)),
      seats_(ranks_.size()),
      calls_(ranks_.size()) {}

// Waits until every member has posted the round, or until a member posts a
// notice that is not small. In the latter case all members must call arrive().
void Channel::await_notices(
    int64_t member,
    std::string_view name,
    const std::string& label,
    int64_t round) {
  const auto has_posted = [round](const Seat& seat) {
    return notice(seat, round).round.load() == round;
  };
  const auto ready = [this, has_posted, round] { // runs often
    bool complete = true;
    for (const Seat& seat : seats_) {
      if (!has_posted(seat)) {
        complete = false;
      } else if (notice(seat, round).signature.small == 0) {
        return true;
      }
    }
    return complete;
  };
  const auto missing = [&] {
    return ranks_without([&](size_t i) {
      return i == static_cast<size_t>(member) || has_posted(seats_[i]);
    });
  };
  // Peers may still complete the round with this member's post.
  const auto give_up = [&] {
    if (ready()) {
      return false;
    }
    arrivals_.fetch_or(kClosed);
    return true;
  };
  const auto broken = [&] { return is_closed(); };
  const int64_t rank = global(member);
  hub_.wait({rank, name, label, sleepers_, ready, missing, give_up, broken});
}

void Channel::await_arrivals(
    int64_t member,
    std::string_view name,
    const std::string& label,
    int64_t round) {
  const auto is_complete = [&](int64_t arrivals) {
    return (arrivals & ~kClosed) >= round * size();
  };
  const auto ready = [&] { return is_complete(arrivals_.load()); };
  const auto missing = [&] {
    return ranks_without(
        [&](size_t i) { return seats_[i].arrivals.load() >= round; });
  };
  // After this call, either all members take part in the round or none does.
  const auto give_up = [&] {
    int64_t seen = arrivals_.load();
    while (!is_complete(seen)) {
      if (arrivals_.compare_exchange_weak(seen, seen | kClosed)) {
        return true;
      }
    }
    return false;
  };
  const auto broken = [&] { return is_closed(); };
  const int64_t rank = global(member);
  hub_.wait({rank, name, label, sleepers_, ready, missing, give_up, broken});
}

bool Channel::is_closed() const {
  return (arrivals_.load() & kClosed) != 0;
}

void Channel::post(
    int64_t member,
    const std::string& label,
    const Signature& signature,
    c10::ArrayRef<at::Tensor> given) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  ++seat.round;
  if (arrivals_.load(std::memory_order_relaxed) & kClosed) {
    // Throws, because the round can never be complete.
    await_notices(member, to_string(signature.kind), label, seat.round);
  }
  Notice& mine = notice(seat, seat.round);
  mine.signature = signature;
  std::byte* to = mine.data.data();
  for (const at::Tensor& tensor : given) {
    if (tensor.numel() > 0) {
      std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
      to += tensor.nbytes();
    }
  }
  seat.has_posted = true;
  mine.round.store(seat.round, std::memory_order_release);
}

bool Channel::fast_path_complete(
    int64_t member,
    const std::string& label,
    const Signature& signature) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  await_notices(member, to_string(signature.kind), label, seat.round);
  // Orders this member's notice before the check for sleepers. A peer that does
  // not see the notice has registered as a sleeper in time to be woken.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  hub_.wake(ranks_, sleepers_);
  for (const Seat& other : seats_) {
    const Notice& theirs = notice(other, seat.round);
    if (theirs.round.load(std::memory_order_acquire) != seat.round ||
        !(theirs.signature == signature)) {
      return false;
    }
  }
  seat.has_posted = false;
  return true;
}

void Channel::arrive(
    int64_t member,
    const std::string& label,
    const Call& call) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  if (!std::exchange(seat.has_posted, false)) {
    Notice& mine = notice(seat, ++seat.round);
    mine.signature = Signature();
    mine.round.store(seat.round);
    hub_.wake(ranks_, sleepers_);
  }
  calls_[static_cast<size_t>(member)] = &call;
  const int64_t round = seat.arrivals.load(std::memory_order_relaxed) + 1;
  seat.arrivals.store(round);
  int64_t seen = arrivals_.load();
  do {
    if (seen & kClosed) {
      // Throws, because the round can never be complete.
      return await_arrivals(member, call.name(), label, round);
    }
  } while (!arrivals_.compare_exchange_weak(seen, seen + 1));
  if (seen + 1 == round * size()) {
    hub_.wake(ranks_, sleepers_);
    return;
  }
  await_arrivals(member, call.name(), label, round);
}

void Channel::sync(int64_t member) noexcept {
  const int64_t goal = ++seats_[static_cast<size_t>(member)].syncs * size();
  if (syncs_.fetch_add(1) + 1 == goal) {
    hub_.wake(ranks_, sleepers_);
    return;
  }
  hub_.wait_surely(
      global(member), sleepers_, [&] { return syncs_.load() >= goal; });
}

void Channel::fail(int64_t member) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  seat.failed[static_cast<size_t>(seat.round % 2)] = seat.round;
}

bool Channel::any_failed(int64_t member) const {
  const int64_t round = seats_[static_cast<size_t>(member)].round;
  for (const Seat& seat : seats_) {
    if (seat.failed[static_cast<size_t>(round % 2)].load() == round) {
      return true;
    }
  }
  return false;
}

AsyncMeetingPtr Channel::join(int64_t member, Call call) {
  AsyncMeetingPtr meeting;
  {
    const std::lock_guard<std::mutex> lock(join_mutex_);
    Seat& seat = seats_[static_cast<size_t>(member)];
    const auto at = static_cast<size_t>(seat.joins++ - past_meetings_);
    if (at == meetings_.size()) {
      meetings_.push_back(std::make_shared<AsyncMeeting>(size()));
    }
    meeting = meetings_[at];
    meeting->join(member, std::move(call), seat.notes);
    if (meeting->complete()) {
      meetings_.pop_front();
      ++past_meetings_;
    }
  }
  if (meeting->complete()) {
    hub_.wake(ranks_, sleepers_);
  }
  return meeting;
}

void Channel::await(
    int64_t member,
    const std::string& label,
    AsyncMeeting& meeting) {
  // Gives up without a check. This member's input stays in the meeting, so
  // peers can complete without this member.
  const auto ready = [&] { return meeting.complete(); };
  const auto missing = [&] {
    return ranks_without(
        [&](size_t i) { return meeting.has_joined(static_cast<int64_t>(i)); });
  };
  const std::string_view name = meeting.call(member).name();
  hub_.wait({global(member), name, label, sleepers_, ready, missing});
}

void Channel::reduce(int64_t member, AsyncMeeting& meeting) {
  try {
    meeting.reduce_blocks(member);
  } catch (...) {
    hub_.wake(ranks_, sleepers_);
    throw;
  }
  if (meeting.is_reduced()) {
    hub_.wake(ranks_, sleepers_);
  } else {
    hub_.wait_surely(
        global(member), sleepers_, [&] { return meeting.is_reduced(); });
  }
  if (meeting.has_failed()) {
    throw RankEnded(); // the failed member throws the reason
  }
}

void Channel::send_mail(
    int64_t from,
    int64_t to,
    int64_t tag,
    at::Tensor tensor) {
  {
    const std::lock_guard<std::mutex> lock(mail_mutex_);
    mail_[{from, to, tag}].push_back(std::move(tensor));
  }
  hub_.wake({global(to)}, sleepers_);
}

at::Tensor Channel::take_mail(
    int64_t from,
    int64_t to,
    int64_t tag,
    const std::string& label) {
  const Address address{from, to, tag};
  const auto ready = [&] {
    const std::lock_guard<std::mutex> lock(mail_mutex_);
    return mail_.contains(address);
  };
  const auto missing = [&] { return std::vector{global(from)}; };
  const auto name = to_string(CollectiveKind::kRecv);
  hub_.wait({global(to), name, label, sleepers_, ready, missing});
  const std::lock_guard<std::mutex> lock(mail_mutex_);
  const auto box = mail_.find(address);
  at::Tensor tensor = std::move(box->second.front());
  box->second.pop_front();
  if (box->second.empty()) {
    mail_.erase(box);
  }
  return tensor;
}

} // namespace dtensor::detail
