// SPDX-License-Identifier: BSD-3-Clause
// SharedChannel: where the members of one group meet that are processes.
//
// A collective is a row of stages, as many on all members. In each, a member
// puts what others are to read into its room, posts a notice, and waits until
// all have posted theirs. Then it reads the rooms of the others. It has two
// rooms and two notices, for odd and even stages, and writes one only when all
// others have posted the next stage, so have done with it: one wait a stage is
// enough. A room is the data of the notice itself, or a block if that is too
// small.
//
// Who waits spins first and then sleeps on the bell, not longer than until it
// is time to look whether those that it waits for still live. Whoever finds
// that the group cannot go on says why in the segment; from then on every
// member throws that.
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/processes/shared_layout_impl.h>
#include <dtensor/comm/processes/shared_segment_impl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dtensor::detail {

class SharedChannel {
 public:
  SharedChannel(
      std::shared_ptr<SharedSegment> segment,
      const GroupMembers& members,
      int64_t block_bytes,
      std::chrono::milliseconds timeout);
  ~SharedChannel();
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  /// Takes this member's seat, and returns when all members have theirs and
  /// nobody needs to open the segment any more.
  void arrive();

  int64_t rank() const {
    return members_.rank;
  }
  int64_t size() const {
    return layout_.members();
  }
  const SharedLayout& layout() const {
    return layout_;
  }

  /// Returns "rank 2 (process 4711)".
  std::string rank_text(int64_t member) const;

  /// Begins a collective or a message. Throws if the group cannot go on.
  void enter(CollectiveKind kind);
  /// Says that this member did not get through what it entered.
  void fail(std::string_view why);
  /// The same outside of a collective.
  void leave(std::string_view why);

  /// The rooms of a stage: of the next until post(), then of that one.
  enum class Room { kNotice, kBlock };
  std::byte* room(Room room, int64_t member) const {
    return room == Room::kNotice ? layout_.notice(member, stage_).data.data()
                                 : layout_.block(member, stage_);
  }
  /// This member's room in the stage after that, free once this one is met.
  std::byte* next_room() const {
    return layout_.block(rank(), stage_ + 1);
  }
  int64_t bytes(Room room) const {
    return room == Room::kNotice ? kNoticeBytes : layout_.block_bytes();
  }
  /// Publishes this member's part of the stage. The first stage of a collective
  /// says what it is.
  void post(const SharedSignature& signature);
  void post();
  /// Waits for the parts of the others.
  void meet();
  /// Whether all members have posted one signature, in the stage just met.
  bool agreed() const;
  /// Ends the stage: room() is that of the next.
  void next() {
    ++stage_;
  }

  /// Returns when `ready` holds; throws when it can no longer come to hold.
  /// `missing` tells of which members something is missing.
  void wait(
      c10::function_ref<bool()> ready,
      c10::function_ref<bool(int64_t)> missing);
  /// Wakes a member that may sleep, or all; call it after making it ready.
  void wake(int64_t member);
  void wake_all();
  /// What a member does whenever it is awake in a long wait.
  void set_chore(std::function<void()> chore) {
    chore_ = std::move(chore);
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Missing = c10::function_ref<bool(int64_t)>;

  bool fit_on_cores() const;
  void sleep(c10::function_ref<bool()> ready, Missing missing);
  void doze(c10::function_ref<bool()> ready, Clock::time_point until);
  void ring(uint32_t members);
  /// Why those that are missing will not come; empty if they may.
  std::string hopeless(Missing missing) const;
  std::string timeout_text(Missing missing, std::chrono::milliseconds timeout)
      const;
  /// Says why the group cannot go on, unless somebody has.
  void give_up(std::string_view why);
  void check_intact() const {
    if (layout_.head().state.load() != SharedHead::kIntact) {
      throw_broken();
    }
  }
  [[noreturn]] void throw_broken() const;
  int64_t global(int64_t member) const {
    return members_.ranks[static_cast<size_t>(member)];
  }
  std::string place() const;

  const std::shared_ptr<SharedSegment> segment_;
  const GroupMembers members_;
  const SharedLayout layout_;
  const std::chrono::milliseconds timeout_;
  const ProcessId process_;
  /// Whether each member can have a core.
  bool fits_ = false;
  int64_t stage_ = 1;
  /// What is entered, and the number of collectives so far.
  std::string_view name_ = "shared_memory_backend";
  int64_t number_ = 0;
  bool is_message_ = true;
  std::function<void()> chore_;
};

} // namespace dtensor::detail
