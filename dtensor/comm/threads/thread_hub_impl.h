// SPDX-License-Identifier: BSD-3-Clause
// ThreadHub: state shared by the threads of one world. The hub records the
// status of each rank, lets ranks wait for each other, and ends them when a
// rank fails.
//
// Every wait that another rank must complete is a Wait. A rank first spins on
// the Wait, then registers it with the hub and sleeps. The hub holds the Waits
// of all sleeping ranks. It thus detects at once a wait for a rank that has
// ended, and a deadlock, in which no rank is left to wake another.
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/group.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace dtensor::detail {

class Channel;

/// Exception that ends a rank because another rank failed; run_ranks
/// distinguishes it from a rank's own error. RankEnded is not a c10::Error, so
/// handlers for c10::Error do not catch it.
class RankEnded : public std::exception {
 public:
  const char* what() const noexcept override {
    return "this rank was terminated because another rank failed";
  }
};

/// A condition that other ranks make true.
struct Wait {
  static bool yes() {
    return true;
  }
  static bool no() {
    return false;
  }

  int64_t rank;
  /// Name of the collective, and label of the group.
  std::string_view name;
  const std::string& label;
  std::atomic<int64_t>& sleepers;
  c10::function_ref<bool()> ready;
  /// Returns the global ranks that this wait still waits for.
  c10::function_ref<std::vector<int64_t>()> missing;
  /// Withdraws permanently. Returns false if the wait has become ready instead.
  c10::function_ref<bool()> give_up = yes;
  /// Returns true if a member has withdrawn already, so the wait can never be
  /// ready.
  c10::function_ref<bool()> broken = no;
};

/// Ranks of a world that are threads of this process: all of them, or some if
/// the world has several processes.
struct LocalRanks {
  int64_t first = 0;
  int64_t count = 0;
  int64_t of = 0;

  bool have(int64_t rank) const {
    return rank >= first && rank < first + count;
  }
};

class ThreadHub {
 public:
  ThreadHub(const LocalRanks& here, std::chrono::milliseconds timeout);

  const LocalRanks& here() const {
    return here_;
  }
  /// Number of ranks in the world.
  int64_t size() const {
    return here_.of;
  }
  /// Returns the channel of these global ranks, creating it at the first call.
  std::shared_ptr<Channel> channel(const std::vector<int64_t>& ranks);

  /// Returns when `wait` is ready. Throws once it can no longer become ready.
  void wait(const Wait& wait);
  /// Returns when `ready` holds. For waits that are certain to end: they cannot
  /// be interrupted.
  void wait_surely(
      int64_t rank,
      std::atomic<int64_t>& sleepers,
      c10::function_ref<bool()> ready);
  /// Wakes the sleepers among these ranks. Call it after making their wait
  /// ready.
  void wake(
      const std::vector<int64_t>& ranks,
      const std::atomic<int64_t>& sleepers);

  /// Marks all ranks as running a new function, after all ranks have ended the
  /// last one. Forgets a deadlock whose error all ranks caught. Channels that
  /// an error closed stay closed, even if the rank caught the error.
  void begin_run();
  /// Records the end of a rank's function. A failure ends all waiting ranks.
  void end_rank(int64_t rank, bool has_failed);

  /// set_place() records the collective that threw `failure` on this rank;
  /// place() returns it, or an empty text for other errors. Both are called by
  /// the rank's own thread.
  void set_place(int64_t rank, std::string place, std::exception_ptr failure);
  std::string place(int64_t rank, const std::exception_ptr& failure);
  /// Returns the last error of this rank's own that ended one of its waits;
  /// empty if there was none. The failure report reads this error once all
  /// ranks have ended, because a rank that caught the error may have skipped
  /// calls that its peers waited for.
  const std::string& wait_error(int64_t rank) const {
    return ranks_[static_cast<size_t>(rank)].wait_error;
  }

 private:
  struct Rank {
    enum class Status { kRunning, kReturned, kFailed };
    Status status = Status::kRunning;
    /// The wait in which this rank sleeps; null while it runs.
    const Wait* wait = nullptr;
    /// True if the rank failed only because a rank that it waited for had
    /// returned.
    bool peer_had_returned = false;
    std::string place;
    std::exception_ptr failure;
    std::string wait_error;
    std::condition_variable wake_up;
  };

  Rank& at(int64_t rank) {
    return ranks_[static_cast<size_t>(rank)];
  }
  void wake_all();
  // The functions below require mutex_.
  void sleep(const Wait& wait, std::unique_lock<std::mutex>& lock);
  /// Returns the reason why the wait can never become ready: the rank's error,
  /// or an empty text if another rank failed. Returns nullopt if the wait can
  /// still become ready.
  std::optional<std::string> dead_peer_reason(const Wait& wait);
  std::string timeout_text(const Wait& wait, std::chrono::milliseconds timeout)
      const;
  std::vector<int64_t> returned_among(const std::vector<int64_t>& ranks) const;
  bool deadlocked() const;
  std::string deadlock_text() const;

  const LocalRanks here_;
  const int64_t forks_;
  const std::chrono::milliseconds timeout_;
  /// True if every rank can have a core of its own.
  const bool one_core_per_member_;
  std::mutex mutex_;
  /// Ranks of the world, in all processes. Ranks in other processes count as
  /// running, as their state is not known here.
  std::vector<Rank> ranks_;
  std::map<std::vector<int64_t>, std::shared_ptr<Channel>> channels_;
  std::string deadlock_;
  int64_t failures_ = 0;
  /// Failures that were not caused by another rank.
  int64_t own_failures_ = 0;
  /// True once failures_ or deadlock_ is set; read without the mutex.
  std::atomic<bool> stop_{false};
};

} // namespace dtensor::detail
