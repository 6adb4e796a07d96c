// SPDX-License-Identifier: BSD-3-Clause
// RankThreads: the threads behind Ranks and run_ranks.
#pragma once

#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/threads/failure_report_impl.h>
#include <dtensor/comm/threads/thread_hub_impl.h>
#include <dtensor/comm/world.h>

#include <ATen/core/Generator.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace dtensor::detail {

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

  void start_threads();
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
