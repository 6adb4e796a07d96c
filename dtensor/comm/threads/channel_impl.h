// SPDX-License-Identifier: BSD-3-Clause
// Channel: where the members of one group meet.
//
// Small tensors are met first: everybody posts a notice, a signature with the
// data itself. When all notices are small and their signatures equal, the
// collective is complete, and nobody waits again: a member has two notices,
// for odd and even rounds, and writes one only when all others have posted the
// next, so have done with it.
//
// Any other collective has two steps. Everybody publishes its call and arrives;
// when all have arrived, each reads the calls and the tensors of the others in
// place. Then everybody departs, and only when all have done so does anybody
// return, so no buffer that is being read is changed or freed.
//
// Arriving may fail (a peer has ended). Once all have arrived, every member is
// certain to depart, so departing cannot be interrupted: it must not be, since
// peers still read our buffers.
//
// Asynchronous collectives meet beside these, in meetings of their own that
// are counted apart (async_meeting_impl.h).
#pragma once

#include <dtensor/comm/assumed_shapes_impl.h>
#include <dtensor/comm/threads/async_meeting_impl.h>
#include <dtensor/comm/threads/small_impl.h>
#include <dtensor/comm/threads/thread_hub_impl.h>

#include <array>
#include <deque>
#include <tuple>

namespace dtensor::detail {

class Channel {
 public:
  Channel(ThreadHub& hub, std::vector<int64_t> ranks);

  /// Publishes what `signature` says of this member's next collective, with
  /// the data of `given`, one after the other. Throws when a member has given
  /// up.
  void post(
      int64_t member,
      const std::string& label,
      const Signature& signature,
      c10::ArrayRef<at::Tensor> given);
  /// Waits for what the others posted. Returns false, on all members alike,
  /// unless all signatures are small and equal; the members arrive() then.
  bool met_small(
      int64_t member,
      const std::string& label,
      const Signature& signature);
  /// What a member posted. After met_small() until the next post().
  const void* posted(int64_t member, int64_t of) const {
    const Seat& seat = seats_[static_cast<size_t>(of)];
    return notice(seat, seats_[static_cast<size_t>(member)].round).data.data();
  }

  /// Publishes `call` and waits until every member has published one.
  void arrive(int64_t member, const std::string& label, const Call& call);
  /// Returns when every member has called it. Any number of times between two
  /// arrivals, the same on all members; the last is the departure.
  void sync(int64_t member) noexcept;

  /// What a member published. Between arrival and departure only.
  const Call& call(int64_t member) const {
    return *calls_[static_cast<size_t>(member)];
  }
  const Calls& calls() const {
    return calls_;
  }

  /// Says that this member could not do its part of the round, before it
  /// departs; whether any member could not, after departure.
  void fail(int64_t member);
  bool any_failed(int64_t member) const;

  /// What a member took for granted since the last collective. Its own to
  /// change, but between arrival and departure.
  AssumedShapes& assumed(int64_t member) {
    return seats_[static_cast<size_t>(member)].assumed;
  }

  /// Publishes what this member gives to its next asynchronous collective.
  AsyncMeetingPtr join(int64_t member, Call call);
  /// Waits until every member has joined.
  void await(int64_t member, const std::string& label, AsyncMeeting& meeting);
  /// Does this member's share of an all_reduce that every member has joined,
  /// and returns when all is done.
  void reduce(int64_t member, AsyncMeeting& meeting);

  /// Hands a tensor over; take_mail() returns it to the member `to`.
  void send_mail(int64_t from, int64_t to, int64_t tag, at::Tensor tensor);
  at::Tensor
  take_mail(int64_t from, int64_t to, int64_t tag, const std::string& label);

 private:
  friend class NoticeWait;
  friend class ArrivalWait;
  friend class MailWait;
  friend class JoinWait;
  using Address = std::tuple<int64_t, int64_t, int64_t>; // from, to, tag

  struct alignas(128) Seat {
    std::array<Notice, 2> notices;
    /// The member's last round, and whether it has posted but not arrived.
    int64_t round = 0;
    bool has_posted = false;
    /// The last odd and even round that the member failed in.
    std::array<std::atomic<int64_t>, 2> failed{};
    /// How often this member has arrived and synced.
    std::atomic<int64_t> arrivals{0};
    int64_t syncs = 0;
    /// How many asynchronous collectives it has joined.
    int64_t joins = 0;
    AssumedShapes assumed;
  };

  static Notice& notice(Seat& seat, int64_t round) {
    return seat.notices[static_cast<size_t>(round % 2)];
  }
  static const Notice& notice(const Seat& seat, int64_t round) {
    return seat.notices[static_cast<size_t>(round % 2)];
  }

  int64_t size() const {
    return static_cast<int64_t>(ranks_.size());
  }
  bool has_mail(const Address& address);
  /// Global ranks of the members, by number, that `has` does not hold of.
  template <typename Has>
  std::vector<int64_t> ranks_without(const Has& has) const {
    std::vector<int64_t> result;
    for (size_t member = 0; member < ranks_.size(); ++member) {
      if (!has(member)) {
        result.push_back(ranks_[member]);
      }
    }
    return result;
  }

  ThreadHub& hub_;
  const std::vector<int64_t> ranks_;
  std::vector<Seat> seats_;
  Calls calls_;
  /// Arrivals of all members together: round r is complete at r * size. The
  /// bit kClosed says that a member has given up, and no more will come.
  alignas(64) std::atomic<int64_t> arrivals_{0};
  alignas(64) std::atomic<int64_t> syncs_{0};
  alignas(64) std::atomic<int64_t> sleepers_{0};
  std::mutex mail_mutex_;
  std::map<Address, std::deque<at::Tensor>> mail_;
  /// Those that not all members have joined, the oldest first, and how many
  /// there were before. They are joined in order, so they fill up in order.
  std::mutex join_mutex_;
  std::deque<AsyncMeetingPtr> meetings_;
  int64_t past_meetings_ = 0;
};

} // namespace dtensor::detail
