// SPDX-License-Identifier: BSD-3-Clause
// RankThreads: the threads behind Ranks and run_ranks, the error that combines
// their failures, and guards for exit().
#pragma once

#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/threads/thread_hub_impl.h>
#include <dtensor/comm/world.h>

#include <ATen/core/Generator.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dtensor::detail {

/// End of one rank. `error` is null if the rank returned. `place` is the
/// collective that threw the error, or empty.
struct RankFailure {
  int64_t rank = 0;
  std::exception_ptr error;
  std::string place;
  /// Error that ended one of the rank's waits, if the rank then caught this
  /// error.
  std::string caught = {};
};

/// Throws one error that lists all failures, rank by rank; equal texts appear
/// once. `where` is the prefix of the message. The error has the type of the
/// ranks' errors if all have the same c10 type, else c10::Error.
void throw_if_any_failed(
    const char* where,
    const std::vector<RankFailure>& failures);

/// Marks that functions run on ranks. While an instance lives, exit(), called
/// by any thread, flushes the streams and ends the process at once, with the
/// status given to exit(). Static destructors would destroy objects that ranks
/// use.
class ExitGuard {
 public:
  /// Registers the exit handlers. Call this function before the first run of
  /// ranks that may be static objects themselves: handlers registered here run
  /// before the destructors of these ranks.
  static void register_after_ranks();

  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

/// While a RankThreadGuard lives, its thread runs a rank's function. If that
/// function calls exit(), the process ends before any destructor of a global
/// runs.
class RankThreadGuard {
 public:
  RankThreadGuard();
  ~RankThreadGuard();
  RankThreadGuard(const RankThreadGuard&) = delete;
  RankThreadGuard& operator=(const RankThreadGuard&) = delete;
};

/// Makes the world of a rank that will run as a thread.
using MakeRank = std::function<
    std::shared_ptr<World>(std::shared_ptr<ThreadHub> hub, int64_t rank)>;

class RankThreads {
 public:
  /// Error messages start with `where`.
  RankThreads(
      const char* where,
      const LocalRanks& here,
      const RunRanksOptions& options,
      const MakeRank& make_rank);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  void run(const char* where, const std::function<void(int64_t)>& fn);
  /// Returns true in a forked child of the process that made the threads. The
  /// child has none of these threads.
  bool is_forked() const;
  /// Number of threads in this process.
  int64_t size() const {
    return hub_->here().count;
  }
  /// Returns true if no function has run yet.
  bool is_fresh();
  /// Sets the caller's default generator to the final state of rank 0's.
  void take_over_generator() const;

 private:
  struct Launch;
  struct Rank {
    std::shared_ptr<World> world;
    /// Generator of the rank; undefined if ranks have no generators of their
    /// own.
    at::Generator generator;
    RankFailure failure;
    std::thread thread;
  };

  void live(Rank& rank);
  void run_in(Rank& rank, const Launch& launch);
  void begin(const char* where);
  /// Runs `launch` on all ranks and returns when all are done.
  void work(const Launch& launch);
  std::vector<RankFailure> failures();
  void finish(bool failed);
  /// Ends the threads and joins them.
  void end();

  const RunRanksOptions options_;
  const KeepFreedMemory memory_;
  const std::shared_ptr<ThreadHub> hub_;
  const int64_t forks_;
  std::deque<Rank> ranks_;

  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable done_;
  // Launch that the threads run; guarded by mutex_.
  const Launch* launch_ = nullptr;
  int64_t launches_ = 0;
  int64_t busy_ = 0; // ranks that have not finished the launch
  bool running_ = false;
  bool failed_ = false;
  bool ending_ = false;
};

} // namespace dtensor::detail
