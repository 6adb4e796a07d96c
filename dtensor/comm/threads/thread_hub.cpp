// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/thread_hub_impl.h>

#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/processes/process_id_impl.h>
#include <dtensor/comm/spin.h>
#include <dtensor/comm/threads/channel_impl.h>
#include <dtensor/error.h>

#include <algorithm>
#include <thread>

namespace dtensor::detail {

ThreadHub::ThreadHub(const LocalRanks& here, std::chrono::milliseconds timeout)
    : here_(here),
      forks_(fork_count()),
      timeout_(std::min(timeout, kLongestTimeout)),
      one_core_per_member_(
          here.count <=
          static_cast<int64_t>(std::thread::hardware_concurrency())),
      ranks_(static_cast<size_t>(here.of)) {}

std::shared_ptr<Channel> ThreadHub::channel(const std::vector<int64_t>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& channel = channels_[ranks];
  if (!channel) {
    channel = std::make_shared<Channel>(*this, ranks);
  }
  return channel;
}

void ThreadHub::wait(const Wait& wait) {
  DTENSOR_CHECK(
      fork_count() == forks_,
      "[{}] the other ranks of \"{}\" are threads of the process that this one "
      "was forked from. Make ranks in the child.",
      wait.name,
      wait.label);
  bool ready = false;
  spin(one_core_per_member_, [&] {
    ready = wait.ready();
    return ready || stop_.load(std::memory_order_relaxed);
  });
  if (ready) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  // Sequentially consistent with wake(): either this rank finds that the wait
  // is ready, or the rank that makes the wait ready finds this sleeper.
  wait.sleepers.fetch_add(1);
  at(wait.rank).wait = &wait;
  const auto awake = c10::make_scope_exit([&] {
    at(wait.rank).wait = nullptr;
    wait.sleepers.fetch_sub(1);
  });
  sleep(wait, lock);
}

void ThreadHub::sleep(const Wait& wait, std::unique_lock<std::mutex>& lock) {
  const auto timeout = CollectiveTimeout::in_effect(timeout_);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  bool in_time = true;
  while (!wait.ready()) {
    std::optional<std::string> reason = dead_peer_reason(wait);
    if (!reason && !in_time) {
      reason = timeout_text(wait, timeout);
    }
    if (reason) {
      if (!wait.give_up()) {
        return;
      }
      if (reason->empty()) {
        throw RankEnded();
      }
      at(wait.rank).wait_error = *reason;
      throw c10::Error({__func__, __FILE__, uint32_t{__LINE__}}, *reason);
    }
    in_time = at(wait.rank).wake_up.wait_until(lock, deadline) ==
        std::cv_status::no_timeout;
  }
}

std::string ThreadHub::timeout_text(
    const Wait& wait,
    std::chrono::milliseconds timeout) const {
  return detail::format_text(
      "[{}] timed out after {} ms on \"{}\" waiting for {}. Call the same "
      "collectives on every rank, or raise {}",
      wait.name,
      timeout.count(),
      wait.label,
      rank_list(wait.missing()),
      timeout == timeout_ ? "the timeout of run_ranks." : "this timeout.");
}

std::optional<std::string> ThreadHub::dead_peer_reason(const Wait& wait) {
  if (!deadlock_.empty()) {
    return deadlock_;
  }
  if (own_failures_ > 0) {
    return "";
  }
  const auto returned = returned_among(wait.missing());
  if (!returned.empty()) {
    at(wait.rank).peer_had_returned = true;
    return detail::format_text(
        "[{}] \"{}\" waits for {}{}. Call the same collectives on every rank.",
        wait.name,
        wait.label,
        rank_list(returned),
        returned.size() == 1 ? ", which has ended" : ", which have ended");
  }
  if (failures_ > 0 || wait.broken()) {
    return "";
  }
  if (deadlocked()) {
    deadlock_ = deadlock_text();
    stop_ = true;
    wake_all();
    return deadlock_;
  }
  return std::nullopt;
}

std::vector<int64_t> ThreadHub::returned_among(
    const std::vector<int64_t>& ranks) const {
  std::vector<int64_t> result;
  for (int64_t rank : ranks) {
    if (ranks_[static_cast<size_t>(rank)].status == Rank::Status::kReturned) {
      result.push_back(rank);
    }
  }
  return result;
}

// Returns true if no rank runs and no rank's wait is ready, so that no rank
// will ever wake another.
bool ThreadHub::deadlocked() const {
  for (const Rank& rank : ranks_) {
    if (rank.status != Rank::Status::kRunning) {
      continue;
    }
    if (rank.wait == nullptr || rank.wait->ready()) {
      return false;
    }
  }
  return true;
}

std::string ThreadHub::deadlock_text() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    parts.push_back(
        rank.status == Rank::Status::kRunning
            ? detail::format_text(
                  "rank {} waits in {} on \"{}\" for {}",
                  i,
                  rank.wait->name,
                  rank.wait->label,
                  rank_list(rank.wait->missing()))
            : detail::format_text("rank {} has ended", i));
  }
  return detail::format_text(
      "[deadlock] every rank waits for another: {}. Call the collectives of a "
      "group in the same order on all its ranks.",
      c10::Join("; ", parts));
}

void ThreadHub::wait_surely(
    int64_t rank,
    std::atomic<int64_t>& sleepers,
    c10::function_ref<bool()> ready) {
  if (spin(one_core_per_member_, ready)) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers.fetch_add(1);
  while (!ready()) {
    at(rank).wake_up.wait(lock);
  }
  sleepers.fetch_sub(1);
}

void ThreadHub::wake(
    const std::vector<int64_t>& ranks,
    const std::atomic<int64_t>& sleepers) {
  if (sleepers.load() == 0) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t rank : ranks) {
    at(rank).wake_up.notify_all();
  }
}

void ThreadHub::wake_all() {
  for (Rank& rank : ranks_) {
    rank.wake_up.notify_all();
  }
}

void ThreadHub::begin_run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failures_ == 0) { // the ranks caught the deadlock, if there was one
    deadlock_.clear();
    stop_ = false;
  }
  for (Rank& rank : ranks_) {
    rank.status = Rank::Status::kRunning;
    rank.peer_had_returned = false;
    rank.place.clear();
    rank.failure = nullptr;
  }
}

void ThreadHub::end_rank(int64_t rank, bool has_failed) {
  if (fork_count() != forks_) {
    return; // another rank may have held the mutex when this child was forked
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  at(rank).status =
      has_failed ? Rank::Status::kFailed : Rank::Status::kReturned;
  if (has_failed) {
    ++failures_;
    own_failures_ += at(rank).peer_had_returned ? 0 : 1;
    stop_ = true;
  }
  wake_all();
}

void ThreadHub::set_place(
    int64_t rank,
    std::string place,
    std::exception_ptr failure) {
  at(rank).place = std::move(place);
  at(rank).failure = std::move(failure);
}

std::string ThreadHub::place(int64_t rank, const std::exception_ptr& failure) {
  return at(rank).failure == failure ? at(rank).place : std::string();
}

} // namespace dtensor::detail
