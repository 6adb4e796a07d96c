// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/channel_impl.h>

#include <utility>

namespace dtensor::detail {
namespace {

constexpr int64_t kClosed = int64_t{1} << 62;

} // namespace

/// Waits until every member has posted the round, or until a member posts a
/// notice that is not small. In the latter case all members must call arrive().
class NoticeWait : public Wait {
 public:
  NoticeWait(
      Channel& channel,
      int64_t member,
      std::string_view name,
      const std::string& label,
      int64_t round)
      : Wait(
            channel.ranks_[static_cast<size_t>(member)],
            name,
            label,
            channel.sleepers_),
        channel_(channel),
        member_(static_cast<size_t>(member)),
        round_(round) {}

  bool ready() const override {
    bool complete = true;
    for (const Channel::Seat& seat : channel_.seats_) {
      const Notice& notice = Channel::notice(seat, round_);
      if (notice.round.load() != round_) {
        complete = false;
      } else if (notice.signature.small == 0) {
        return true;
      }
    }
    return complete;
  }

  std::vector<int64_t> missing() const override {
    return channel_.ranks_without([&](size_t i) {
      const Notice& notice = Channel::notice(channel_.seats_[i], round_);
      return i == member_ || notice.round.load() == round_;
    });
  }

  // Peers may still complete the round with this member's post.
  bool give_up() override {
    if (ready()) {
      return false;
    }
    channel_.arrivals_.fetch_or(kClosed);
    return true;
  }

  bool broken() const override {
    return (channel_.arrivals_.load() & kClosed) != 0;
  }

 private:
  Channel& channel_;
  size_t member_;
  int64_t round_;
};

/// Waits for all members to arrive in a round.
class ArrivalWait : public Wait {
 public:
  ArrivalWait(
      Channel& channel,
      int64_t member,
      const std::string& label,
      const Call& call,
      int64_t round)
      : Wait(
            channel.ranks_[static_cast<size_t>(member)],
            call.name(),
            label,
            channel.sleepers_),
        channel_(channel),
        round_(round) {}

  bool ready() const override {
    return (channel_.arrivals_.load() & ~kClosed) >= round_ * channel_.size();
  }

  std::vector<int64_t> missing() const override {
    return channel_.ranks_without(
        [&](size_t i) { return channel_.seats_[i].arrivals.load() >= round_; });
  }

  // After this call, either all members take part in the round or none does.
  bool give_up() override {
    int64_t seen = channel_.arrivals_.load();
    while ((seen & ~kClosed) < round_ * channel_.size()) {
      if (channel_.arrivals_.compare_exchange_weak(seen, seen | kClosed)) {
        return true;
      }
    }
    return false;
  }

  bool broken() const override {
    return (channel_.arrivals_.load() & kClosed) != 0;
  }

 private:
  Channel& channel_;
  int64_t round_;
};

/// Waits for a message.
class MailWait : public Wait {
 public:
  MailWait(
      Channel& channel,
      const Channel::Address& address,
      const std::string& label)
      : Wait(
            channel.ranks_[static_cast<size_t>(std::get<1>(address))],
            to_string(CollectiveKind::kRecv),
            label,
            channel.sleepers_),
        channel_(channel),
        address_(address) {}

  bool ready() const override {
    return channel_.has_mail(address_);
  }
  std::vector<int64_t> missing() const override {
    return {channel_.ranks_[static_cast<size_t>(std::get<0>(address_))]};
  }

 private:
  Channel& channel_;
  Channel::Address address_;
};

/// Waits for all members to join an asynchronous collective.
class JoinWait : public Wait {
 public:
  JoinWait(
      Channel& channel,
      int64_t member,
      const std::string& label,
      const AsyncMeeting& meeting)
      : Wait(
            channel.ranks_[static_cast<size_t>(member)],
            meeting.call(member).name(),
            label,
            channel.sleepers_),
        channel_(channel),
        meeting_(meeting) {}

  bool ready() const override {
    return meeting_.complete();
  }
  std::vector<int64_t> missing() const override {
    return channel_.ranks_without(
        [&](size_t i) { return meeting_.has_joined(static_cast<int64_t>(i)); });
  }
  // Gives up without a check. This member's input stays in the meeting, so
  // peers can complete without this member.

 private:
  Channel& channel_;
  const AsyncMeeting& meeting_;
};

Channel::Channel(ThreadHub& hub, std::vector<int64_t> ranks)
    : hub_(hub),
      ranks_(std::move(ranks)),
      seats_(ranks_.size()),
      calls_(ranks_.size()) {}

void Channel::post(
    int64_t member,
    const std::string& label,
    const Signature& signature,
    c10::ArrayRef<at::Tensor> given) {
  Seat& seat = seats_[static_cast<size_t>(member)];
  ++seat.round;
  if (arrivals_.load(std::memory_order_relaxed) & kClosed) {
    NoticeWait wait(
        *this, member, to_string(signature.kind), label, seat.round);
    hub_.wait(wait); // throws: it can never be ready
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
  NoticeWait wait(*this, member, to_string(signature.kind), label, seat.round);
  hub_.wait(wait);
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
  ArrivalWait wait(*this, member, label, call, round);
  int64_t seen = arrivals_.load();
  do {
    if (seen & kClosed) {
      return hub_.wait(wait); // throws: it can never be ready
    }
  } while (!arrivals_.compare_exchange_weak(seen, seen + 1));
  if (seen + 1 == round * size()) {
    hub_.wake(ranks_, sleepers_);
    return;
  }
  hub_.wait(wait);
}

void Channel::sync(int64_t member) noexcept {
  const int64_t goal = ++seats_[static_cast<size_t>(member)].syncs * size();
  if (syncs_.fetch_add(1) + 1 == goal) {
    hub_.wake(ranks_, sleepers_);
    return;
  }
  hub_.wait_surely(ranks_[static_cast<size_t>(member)], sleepers_, [&] {
    return syncs_.load() >= goal;
  });
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
    meeting->join(member, std::move(call), seat.assumed);
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
  JoinWait wait(*this, member, label, meeting);
  hub_.wait(wait);
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
    hub_.wait_surely(ranks_[static_cast<size_t>(member)], sleepers_, [&] {
      return meeting.is_reduced();
    });
  }
  if (meeting.has_failed()) {
    throw RankEnded(); // the failed member throws the reason
  }
}

bool Channel::has_mail(const Address& address) {
  const std::lock_guard<std::mutex> lock(mail_mutex_);
  const auto box = mail_.find(address);
  return box != mail_.end() && !box->second.empty();
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
  hub_.wake({ranks_[static_cast<size_t>(to)]}, sleepers_);
}

at::Tensor Channel::take_mail(
    int64_t from,
    int64_t to,
    int64_t tag,
    const std::string& label) {
  const Address address{from, to, tag};
  MailWait wait(*this, address, label);
  hub_.wait(wait);
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
