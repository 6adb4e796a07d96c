// SPDX-License-Identifier: BSD-3-Clause
// Channel: the meeting point of one group's members.
//
// Small tensors take a fast path first. Every member posts a notice, a
// signature with the data itself. When all notices are small and their
// signatures equal, the collective is complete without a second wait. A member
// has two notices, for odd and even rounds. It overwrites a notice only once
// all members have posted the next round, and so have finished reading the
// overwritten notice.
//
// Any other collective has two steps. Every member publishes its call and
// arrives; once all members have arrived, each reads the calls and the tensors
// of its peers in place. Then every member departs. No member returns before
// all have departed, so no buffer is changed or freed while a peer reads it.
//
// Arriving may fail (a peer has ended). Once all have arrived, every member is
// certain to depart. Departing cannot be interrupted, since peers still read
// this rank's buffers.
//
// Asynchronous collectives meet separately, in AsyncMeetings with a count of
// their own (async_meeting_impl.h).
#pragma once

#include <dtensor/comm/backend/rank_notes_impl.h>
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

  /// Publishes `signature` for this member's next collective, with the data of
  /// the `given` tensors, concatenated. Throws if a member has given up.
  void post(
      int64_t member,
      const std::string& label,
      const Signature& signature,
      c10::ArrayRef<at::Tensor> given);
  /// Waits for the posts of all members. Returns false, on all members alike,
  /// unless all signatures are small and equal; the members then call arrive().
  bool fast_path_complete(
      int64_t member,
      const std::string& label,
      const Signature& signature);
  /// Data posted by member `of`. Valid after fast_path_complete() until the
  /// next post().
  const void* posted(int64_t member, int64_t of) const {
    const Seat& seat = seats_[static_cast<size_t>(of)];
    return notice(seat, seats_[static_cast<size_t>(member)].round).data.data();
  }

  /// Publishes `call` and waits until every member has published one.
  void arrive(int64_t member, const std::string& label, const Call& call);
  /// Returns when every member has called sync(). Members may call sync() any
  /// number of times between two arrivals, all equally often. The last of these
  /// calls is the departure.
  void sync(int64_t member) noexcept;

  /// Call published by `member`. Valid between arrival and departure only.
  const Call& call(int64_t member) const {
    return *calls_[static_cast<size_t>(member)];
  }
  const Calls& calls() const {
    return calls_;
  }

  /// fail() marks this member's work in the round as failed, before it departs.
  /// any_failed() returns true, after departure, if any member called fail().
  void fail(int64_t member);
  bool any_failed(int64_t member) const;

  /// Notes of `member` since the last collective. The member may
  /// change them, except between arrival and departure.
  RankNotes& notes(int64_t member) {
    return seats_[static_cast<size_t>(member)].notes;
  }

  /// Publishes this member's input to its next asynchronous collective.
  AsyncMeetingPtr join(int64_t member, Call call);
  /// Waits until every member has joined.
  void await(int64_t member, const std::string& label, AsyncMeeting& meeting);
  /// Reduces this member's blocks of an all_reduce that every member has
  /// joined. Returns when all blocks are done.
  void reduce(int64_t member, AsyncMeeting& meeting);

  /// Delivers a tensor to member `to`, which receives it with take_mail().
  void send_mail(int64_t from, int64_t to, int64_t tag, at::Tensor tensor);
  at::Tensor
  take_mail(int64_t from, int64_t to, int64_t tag, const std::string& label);

 private:
  using Address = std::tuple<int64_t, int64_t, int64_t>; // from, to, tag

  struct alignas(128) Seat {
    std::array<Notice, 2> notices;
    /// The member's last round, and true if it has posted in that round but not
    /// arrived.
    int64_t round = 0;
    bool has_posted = false;
    /// Last odd and even rounds in which the member failed.
    std::array<std::atomic<int64_t>, 2> failed{};
    /// Number of this member's arrivals and syncs.
    std::atomic<int64_t> arrivals{0};
    int64_t syncs = 0;
    /// Number of asynchronous collectives that the member has joined.
    int64_t joins = 0;
    RankNotes notes;
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
  int64_t global(int64_t member) const {
    return ranks_[static_cast<size_t>(member)];
  }
  void await_notices(
      int64_t member,
      std::string_view name,
      const std::string& label,
      int64_t round);
  /// Waits for all members to arrive in a round.
  void await_arrivals(
      int64_t member,
      std::string_view name,
      const std::string& label,
      int64_t round);
  bool is_closed() const;
  /// Returns the global ranks of the members for which `has(member)` is false.
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
  /// Arrivals of all members together: round r is complete at r * size. The bit
  /// kClosed marks that a member has given up and no arrivals will follow.
  alignas(64) std::atomic<int64_t> arrivals_{0};
  alignas(64) std::atomic<int64_t> syncs_{0};
  alignas(64) std::atomic<int64_t> sleepers_{0};
  std::mutex mail_mutex_;
  std::map<Address, std::deque<at::Tensor>> mail_;
  /// Meetings that some members have not joined yet, oldest first, and the
  /// number of earlier meetings. Members join in order, so meetings complete in
  /// order.
  std::mutex join_mutex_;
  std::deque<AsyncMeetingPtr> meetings_;
  int64_t past_meetings_ = 0;
};

} // namespace dtensor::detail
