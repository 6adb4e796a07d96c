// SPDX-License-Identifier: BSD-3-Clause
// SharedChannel: synchronization of the members of a group of processes.
//
// A collective is a sequence of stages, equally many on all members. In each
// stage, a member writes data for the others into its buffer (buffer()), posts
// a notice, and waits until all members have posted. Then the member reads the
// buffers of the others. Every member has two buffers and two notices, for odd
// and even stages. A member rewrites a buffer only after all others have posted
// the next stage, that is, once they have finished reading. One wait per stage
// is therefore enough. A buffer is the data field of the notice itself, or a
// block if the data do not fit into the notice.
//
// A waiting member spins first and then sleeps on the bell (a futex). The
// member wakes periodically to check that the members it waits for are alive. A
// member that finds that the group cannot continue writes the reason into the
// segment. From then on, every member throws that reason.
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/shared_memory/shared_layout_impl.h>
#include <dtensor/comm/shared_memory/shared_segment_impl.h>

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

  /// Takes this member's seat. Returns when all members have taken their seats
  /// and none needs to open the segment any more.
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

  /// Begins a collective or a message. Throws if the group cannot continue.
  void enter(CollectiveKind kind);
  /// Marks the current collective or message as failed on this member.
  void fail(std::string_view why);
  /// Marks this member as failed outside of a collective.
  void leave(std::string_view why);

  /// Buffers of a stage: those of the next stage until post(), then of that
  /// stage.
  enum class Buffer { kNotice, kBlock };
  std::byte* buffer(Buffer buffer, int64_t member) const {
    return buffer == Buffer::kNotice
        ? layout_.notice(member, stage_).data.data()
        : layout_.block(member, stage_);
  }
  /// Returns this member's buffer of the following stage. The buffer is free
  /// once the current stage is met.
  std::byte* next_buffer() const {
    return layout_.block(rank(), stage_ + 1);
  }
  int64_t bytes(Buffer buffer) const {
    return buffer == Buffer::kNotice ? kNoticeBytes : layout_.block_bytes();
  }
  /// Publishes this member's data of the stage. The first stage of a collective
  /// carries its signature.
  void post(const SharedSignature& signature);
  void post();
  /// Waits until all other members have posted the stage.
  void meet();
  /// Returns true if all members posted the same signature in the stage just
  /// met.
  bool agreed() const;
  /// Ends the stage; buffer() then refers to the next stage.
  void next() {
    ++stage_;
  }

  /// Returns when `ready` holds; throws once it can no longer become true.
  /// `missing` returns true for members that `ready` still depends on.
  void wait(
      c10::function_ref<bool()> ready,
      c10::function_ref<bool(int64_t)> missing);
  /// Wakes a member that may sleep, or all members. Call it after making the
  /// member's condition true.
  void wake(int64_t member);
  void wake_all();
  /// Sets the function that this member runs repeatedly in a long wait,
  /// whenever the member is awake.
  void set_progress_callback(std::function<void()> chore) {
    progress_callback_ = std::move(chore);
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Missing = c10::function_ref<bool(int64_t)>;

  /// Returns once no member is missing.
  template <typename IsMissing>
  void wait_for_all(const IsMissing& missing);
  bool has_core_per_member() const;
  void sleep(c10::function_ref<bool()> ready, Missing missing);
  void sleep_until_woken(
      c10::function_ref<bool()> ready,
      Clock::time_point until);
  void make_progress() const {
    if (progress_callback_) {
      progress_callback_();
    }
  }
  void ring(uint32_t members);
  /// Returns the reason why the missing members will not arrive; "" if they
  /// still may.
  std::string dead_peer_reason(Missing missing) const;
  std::string timeout_text(Missing missing, std::chrono::milliseconds timeout)
      const;
  /// Writes the reason why the group cannot continue, unless another member
  /// already has written a reason.
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
  /// True if each member can have a core of its own.
  bool one_core_per_member_ = false;
  int64_t stage_ = 1;
  /// Current collective or message, and the number of collectives so far.
  std::string_view name_ = "shared_memory_backend";
  int64_t number_ = 0;
  bool is_message_ = true;
  std::function<void()> progress_callback_;
};

} // namespace dtensor::detail
