// SPDX-License-Identifier: BSD-3-Clause
// RankThreads: the threads behind Ranks and run_ranks.
#pragma once

#include <dtensor/comm/rank_memory_impl.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/threads/failure_report_impl.h>
#include <dtensor/comm/threads/thread_rank_impl.h>

#include <ATen/core/Generator.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace dtensor::detail {

class RankThreads {
 public:
  /// `where` begins messages, `world` is what they call it.
  RankThreads(
      const char* where,
      const char* world,
      int64_t n,
      const RunRanksOptions& options);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  void run(const char* where, const std::function<void(int64_t)>& fn);
  int64_t size() const {
    return hub_->size();
  }
  /// The caller's default generator goes on where that of rank 0 stopped.
  void take_over_generator() const;

 private:
  struct Launch;
  struct Rank {
    std::shared_ptr<ThreadRank> world;
    /// Undefined where ranks have none of their own.
    at::Generator generator;
    RankFailure failure;
    std::thread thread;
  };

  void main(Rank& rank);
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
