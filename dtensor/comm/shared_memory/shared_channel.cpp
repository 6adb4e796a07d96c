// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shared_memory/shared_channel_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/spin.h>
#include <dtensor/error.h>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <climits>
#include <thread>
#include <utility>

namespace dtensor::detail {
namespace {

using Clock = std::chrono::steady_clock;

// Interval between liveness checks: a peer's death can go unnoticed for this
// long. A check takes some 20 us.
constexpr std::chrono::milliseconds kLookAfter(100);

// Returns the member's bit in a futex mask. Members that share a bit are woken
// together.
uint32_t bit_of(int64_t member) {
  return uint32_t{1} << (member % 32);
}

// Sleeps while `word` equals `seen`, until one of `members` is woken.
void futex_wait(
    std::atomic<uint32_t>& word,
    uint32_t seen,
    uint32_t members,
    Clock::time_point until) {
  const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(
                      until.time_since_epoch())
                      .count();
  const timespec deadline{
      .tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
  syscall(
      SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &deadline, nullptr, members);
}

void futex_wake(std::atomic<uint32_t>& word, uint32_t members) {
  syscall(
      SYS_futex, &word, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, members);
}

} // namespace

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

template <typename IsMissing>
void SharedChannel::wait_for_all(const IsMissing& missing) {
  const auto complete = [&] {
    for (int64_t member = 0; member < size(); ++member) {
      if (missing(member)) {
        return false;
      }
    }
    return true;
  };
  wait(complete, missing);
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
  wait_for_all(missing);
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
  wait_for_all(missing);
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

void SharedChannel::wait(c10::function_ref<bool()> ready, Missing missing) {
  if (!ready() && !spin(one_core_per_member_, ready)) {
    sleep(ready, missing);
  }
}

void SharedChannel::sleep(c10::function_ref<bool()> ready, Missing missing) {
  const auto timeout = CollectiveTimeout::in_effect(timeout_);
  const auto deadline = Clock::now() + timeout;
  auto next_look = Clock::now() + kLookAfter;
  while (true) {
    make_progress();
    if (ready()) {
      return;
    }
    check_intact();
    sleep_until_woken(ready, std::min(next_look, deadline));
    const auto now = Clock::now();
    if (now < std::min(next_look, deadline)) {
      continue;
    }
    next_look = now + kLookAfter;
    std::string why = dead_peer_reason(missing);
    if (why.empty() && now >= deadline) {
      why = timeout_text(missing, timeout);
    }
    // The condition is checked again, because a member may have fulfilled it
    // before it ended.
    if (!why.empty() && !ready()) {
      give_up(why);
    }
  }
}

void SharedChannel::sleep_until_woken(
    c10::function_ref<bool()> ready,
    Clock::time_point until) {
  SharedHead& head = layout_.head();
  head.sleepers.fetch_add(1);
  const uint32_t seen = head.bell.load();
  // The fence pairs with the fence in ring(): either this member sees the
  // condition fulfilled, or the waker sees this member in `sleepers`. Messages,
  // which `ready` may not depend on, arrive in the same way.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  make_progress();
  if (!ready() && head.state.load() == SharedHead::kIntact) {
    futex_wait(head.bell, seen, bit_of(rank()), until);
  }
  head.sleepers.fetch_sub(1);
}

void SharedChannel::wake(int64_t member) {
  ring(bit_of(member));
}

void SharedChannel::wake_all() {
  ring(~uint32_t{0});
}

void SharedChannel::ring(uint32_t members) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  SharedHead& head = layout_.head();
  if (head.sleepers.load() != 0) {
    head.bell.fetch_add(1);
    futex_wake(head.bell, members);
  }
}

std::string SharedChannel::dead_peer_reason(Missing missing) const {
  for (int64_t member = 0; member < size(); ++member) {
    const SharedSeat& seat = layout_.seat(member);
    const uint32_t state = seat.state.load();
    if (member == rank() || state == SharedSeat::kEmpty || !missing(member)) {
      continue;
    }
    const std::string waiting = detail::format_text(
        "; rank {} waits for it in {}", global(rank()), place());
    if (state == SharedSeat::kLeft) {
      return detail::format_text(
          "{} has released the group{}. Call the same collectives on every "
          "rank.",
          rank_text(member),
          waiting);
    }
    if (has_ended(seat.process)) {
      return detail::format_text(
          "{} has ended{}. Start all ranks again.", rank_text(member), waiting);
    }
  }
  return "";
}

std::string SharedChannel::timeout_text(
    Missing missing,
    std::chrono::milliseconds timeout) const {
  std::vector<int64_t> absent;
  for (int64_t member = 0; member < size(); ++member) {
    if (missing(member)) {
      absent.push_back(global(member));
    }
  }
  return detail::format_text(
      "timed out after {} ms waiting for {} in {}. Call the same collectives "
      "on every rank, or raise the timeout.",
      timeout.count(),
      rank_list(absent),
      place());
}

std::string SharedChannel::rank_text(int64_t member) const {
  return detail::format_text(
      "rank {} (process {})", global(member), layout_.seat(member).process.pid);
}

std::string SharedChannel::place() const {
  const std::string number = is_message_ ? "" : c10::str(" ", number_);
  return detail::format_text("{}{} on \"{}\"", name_, number, members_.label);
}

void SharedChannel::fail(std::string_view why) {
  give_up(detail::format_text(
      "{} failed in {}: {}. Start all ranks again.",
      rank_text(rank()),
      place(),
      why.substr(0, why.find_last_not_of('.') + 1)));
}

void SharedChannel::leave(std::string_view why) {
  give_up(detail::format_text("{} failed: {}", rank_text(rank()), why));
}

void SharedChannel::give_up(std::string_view why) {
  SharedHead& head = layout_.head();
  uint32_t intact = SharedHead::kIntact;
  if (head.state.compare_exchange_strong(intact, SharedHead::kBreaking)) {
    const size_t length = std::min(why.size(), head.reason.size() - 1);
    std::copy_n(why.begin(), length, head.reason.begin());
    head.state.store(SharedHead::kBroken);
    wake_all();
  }
}

void SharedChannel::throw_broken() const {
  // The wait is bounded, because the member that writes the reason may die
  // meanwhile.
  const SharedHead& head = layout_.head();
  const auto deadline = Clock::now() + kLookAfter;
  while (head.state.load() != SharedHead::kBroken && Clock::now() < deadline) {
    std::this_thread::yield();
  }
  const auto end = std::ranges::find(head.reason, '\0');
  DTENSOR_THROW("[{}] {}", name_, std::string(head.reason.begin(), end));
}

} // namespace dtensor::detail
