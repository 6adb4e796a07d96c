// SPDX-License-Identifier: BSD-3-Clause
// Ranks as threads: run_ranks runs a function on n ranks, each a thread of this
// process.
//
//   run_ranks(4, [] {
//     auto mesh = init_device_mesh(torch::kCPU, {4}, {"tp"});
//     ...
//   });
//
// A Ranks object keeps its ranks alive between calls of run(). A rank can use
// in one call what it made in an earlier one:
//
//   Ranks ranks(4);
//   std::vector<Model> models(4, nullptr);
//   ranks.run([&](int64_t rank) { models[rank] = sharded_model(); });
//   ranks.run([&](int64_t rank) { answer(models[rank]); });
//
// Without run_ranks and Ranks, a program is rank 0 of a world of one rank, so
// the same function also runs without them. Other worlds: comm/world.h.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/world.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace dtensor {

namespace detail {
class RankThreads;
}

/// Options of run_ranks and Ranks.
struct RunRanksOptions {
  /// Longest time that a collective waits for a rank. The error names the
  /// missing ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Number of threads for the operators of one rank (at::set_num_threads). 0
  /// divides the caller's threads among the ranks, at least 1 each.
  int intra_op_threads = 0;
  /// While the ranks live, malloc keeps freed memory instead of returning it to
  /// the system; getting it back would cost a page fault per 4 KB. The option
  /// affects the whole process. glibc's settings are restored when no ranks
  /// with this option are left (docs/concepts/ranks.md has the limits).
  bool keep_freed_memory = true;
  /// Gives each rank a default CPU generator of its own
  /// (comm/rank_generator.h): LibTorch's is replaced while a function runs on
  /// ranks. If false, ranks draw from the process's generator in turns.
  bool own_generators = true;
};

/// Ranks that live as long as the object. Their threads, generators, groups,
/// meshes and models persist from one run() to the next.
class DTENSOR_API Ranks {
 public:
  /// Throws ValueError if n < 1, and RuntimeError inside a rank.
  explicit Ranks(int64_t n, const RunRanksOptions& options = {});
  /// Ends the ranks. Tensors and models that they made can still be inspected.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Runs `fn` on all ranks, each in its thread, and returns when all have
  /// returned. The ranks get the caller's current grad mode and other
  /// thread-local state. If any rank throws, all ranks end. This call then
  /// throws the error that run_ranks throws, and later calls fail. Throws
  /// RuntimeError inside a rank, and while another thread's call is running.
  void run(const std::function<void()>& fn);
  /// Overload that passes the rank to `fn`.
  void run(const std::function<void(int64_t)>& fn);

  /// Number of ranks.
  int64_t size() const;

 private:
  std::unique_ptr<detail::RankThreads> threads_;
};

/// Runs `fn` on `n` ranks, each a thread, and returns when all have returned.
/// Like Ranks for a single call, but the caller's default generator gets the
/// final state of rank 0's generator. If any rank throws, all ranks waiting for
/// it end, and one error lists every rank's failure and the collective that it
/// was in. If exactly one rank failed by itself, the error contains that rank's
/// message unchanged.
/// Throws ValueError if n < 1, and RuntimeError inside a rank.
DTENSOR_API void run_ranks(
    int64_t n,
    const std::function<void()>& fn,
    const RunRanksOptions& options = {});

/// Overload that passes the rank to `fn`.
DTENSOR_API void run_ranks(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const RunRanksOptions& options = {});

} // namespace dtensor
