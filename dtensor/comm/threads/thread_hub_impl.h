// SPDX-License-Identifier: BSD-3-Clause
// ThreadHub: what the threads of one world share. Which rank is where, how
// ranks wait for each other, and how they are ended when one of them fails.
//
// Every wait that another rank must complete is a Wait. A rank first spins on
// it, then registers it with the hub and sleeps. Because the hub knows
// every sleeping rank's wait, it sees at once when one waits for a rank that
// has ended, and when nobody is left to wake anybody (a deadlock).
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/call_impl.h>
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

/// Ends a rank because another one failed; run_ranks knows it from a rank's
/// own error. Not a c10::Error, so that nobody catches it by chance.
class RankEnded : public std::exception {
 public:
  const char* what() const noexcept override {
    return "this rank was ended because another rank failed";
  }
};

/// Something that other ranks complete.
class Wait {
 public:
  Wait(
      int64_t rank,
      std::string_view name,
      const std::string& label,
      std::atomic<int64_t>& sleepers)
      : rank_(rank),
        name_(name),
        label_(label),
        sleepers_(sleepers) {}
  virtual ~Wait() = default;

  virtual bool ready() const = 0;
  /// Global ranks whose part is missing.
  virtual std::vector<int64_t> missing() const = 0;
  /// Withdraws for ever; false if the wait has become ready instead.
  virtual bool give_up() = 0;
  /// Whether somebody has withdrawn already, so that it never will be ready.
  virtual bool broken() const = 0;

  int64_t rank() const {
    return rank_;
  }
  std::atomic<int64_t>& sleepers() {
    return sleepers_;
  }
  std::string_view name() const {
    return name_;
  }
  /// `all_reduce on "tp"`.
  std::string place() const;
  const std::string& label() const {
    return label_;
  }

 private:
  int64_t rank_;
  std::string_view name_;
  const std::string& label_;
  std::atomic<int64_t>& sleepers_;
};

/// Which ranks of a world are threads of this process: all, or, where the world
/// has several processes, some.
struct RanksHere {
  int64_t first = 0;
  int64_t count = 0;
  int64_t of = 0;

  bool have(int64_t rank) const {
    return rank >= first && rank < first + count;
  }
};

class ThreadHub {
 public:
  ThreadHub(const RanksHere& here, std::chrono::milliseconds timeout);

  const RanksHere& here() const {
    return here_;
  }
  /// Of the world.
  int64_t size() const {
    return here_.of;
  }
  /// The channel of these global ranks, made by whoever asks first.
  std::shared_ptr<Channel> channel(const std::vector<int64_t>& ranks);

  /// Returns when `wait` is ready; throws when it can no longer be.
  void wait(Wait& wait);
  /// Returns when `ready` holds. For waits that are certain to end: nothing
  /// interrupts them.
  void wait_surely(
      int64_t rank,
      std::atomic<int64_t>& sleepers,
      c10::function_ref<bool()> ready);
  /// Wakes these ranks if any of them may sleep; call it after making their
  /// wait ready.
  void wake(
      const std::vector<int64_t>& ranks,
      const std::atomic<int64_t>& sleepers);

  /// All ranks begin a function, and have ended the one before. What an error
  /// that a rank caught has closed stays closed.
  void begin_run();
  /// How a rank's function ended. A failure ends all ranks that wait.
  void rank_returned(int64_t rank);
  void rank_failed(int64_t rank);

  /// Which collective an error of this rank came out of, and asking it: empty
  /// for other errors. Called by the rank's thread.
  void set_place(int64_t rank, std::string place, std::exception_ptr failure);
  std::string place(int64_t rank, const std::exception_ptr& failure);
  /// The last error of this rank's own that ended one of its waits; empty if
  /// there was none. For a report when all ranks have ended: a rank that caught
  /// it left the others without what it then did not do.
  const std::string& gave_up(int64_t rank) const {
    return ranks_[static_cast<size_t>(rank)].gave_up;
  }

 private:
  struct Rank {
    enum class Status { kRunning, kReturned, kFailed };
    Status status = Status::kRunning;
    /// The wait this rank sleeps in.
    const Wait* wait = nullptr;
    /// It failed only because a rank it waited for had returned.
    bool peer_had_returned = false;
    std::string place;
    std::exception_ptr failure;
    std::string gave_up;
    std::condition_variable wake_up;
  };

  Rank& at(int64_t rank) {
    return ranks_[static_cast<size_t>(rank)];
  }
  void end_rank(int64_t rank, Rank::Status status);
  void wake_all();
  // All below: with mutex_ held.
  void sleep(Wait& wait, std::unique_lock<std::mutex>& lock);
  /// Why the wait will never be ready: the error of the rank, or an empty text
  /// where another rank failed. Nothing if it may yet be.
  std::optional<std::string> hopeless(const Wait& wait);
  std::string timeout_text(const Wait& wait, std::chrono::milliseconds timeout)
      const;
  std::vector<int64_t> returned_among(const std::vector<int64_t>& ranks) const;
  bool deadlocked() const;
  std::string deadlock_text() const;

  const RanksHere here_;
  const int64_t forks_;
  const std::chrono::milliseconds timeout_;
  /// Whether each rank can have a core.
  const bool fits_;
  std::mutex mutex_;
  /// Of the world: of those that are not here nothing is known but that they
  /// may run.
  std::vector<Rank> ranks_;
  std::map<std::vector<int64_t>, std::shared_ptr<Channel>> channels_;
  std::string deadlock_;
  int64_t failures_ = 0;
  /// Of them, those that are nobody else's fault.
  int64_t own_failures_ = 0;
  /// Set with failures_ or deadlock_; read without the mutex.
  std::atomic<bool> stop_{false};
};

} // namespace dtensor::detail
