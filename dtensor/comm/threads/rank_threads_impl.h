// SPDX-License-Identifier: BSD-3-Clause
// RankThreads: the threads behind Ranks and run_ranks.
#pragma once

#include <dtensor/comm/rank_memory_impl.h>
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

/// Makes the world of a rank that is to be a thread.
using MakeRank = std::function<
    std::shared_ptr<World>(std::shared_ptr<ThreadHub> hub, int64_t rank)>;

class RankThreads {
 public:
  /// `where` begins messages.
  RankThreads(
      const char* where,
      const RanksHere& here,
      const RunRanksOptions& options,
      const MakeRank& make_rank);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  void run(const char* where, const std::function<void(int64_t)>& fn);
  /// Whether this is a child of the process that made the threads, which it
  /// does not have.
  bool is_forked() const;
  /// How many there are here.
  int64_t size() const {
    return hub_->here().count;
  }
  /// Whether no function has run yet.
  bool is_fresh();
  /// The caller's default generator goes on where that of rank 0 stopped.
  void take_over_generator() const;

 private:
  struct Launch;
  struct Rank {
    std::shared_ptr<World> world;
    /// Undefined where ranks have none of their own.
    at::Generator generator;
    RankFailure failure;
    std::thread thread;
  };

  void start_threads();
  void live(Rank& rank);
  void run_in(Rank& rank, const Launch& launch);
  void begin(const char* where);
  /// Returns when all ranks have done `launch`.
  void work(const Launch& launch);
  std::vector<RankFailure> failures();
  void finish(bool failed);
  /// Lets the threads end, and waits for it.
  void end();

  const RunRanksOptions options_;
  const KeepFreedMemory memory_;
  const std::shared_ptr<ThreadHub> hub_;
  const int64_t forks_;
  std::deque<Rank> ranks_;

  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable done_;
  // With mutex_ held.
  const Launch* launch_ = nullptr;
  int64_t launches_ = 0;
  int64_t busy_ = 0; // ranks that have not done it
  bool running_ = false;
  bool failed_ = false;
  bool ending_ = false;
};

} // namespace dtensor::detail
