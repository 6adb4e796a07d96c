// SPDX-License-Identifier: BSD-3-Clause
// Where ranks come from: run_ranks runs a function on n ranks, which are
// threads of this process.
//
//   run_ranks(4, [] {
//     auto mesh = init_device_mesh(torch::kCPU, {4}, {"tp"});
//     ...
//   });
//
// Ranks that live on are an object. What a rank made in one call is its own in
// the next:
//
//   Ranks ranks(4);
//   std::vector<Model> models(4, nullptr);
//   ranks.run([&](int64_t rank) { models[rank] = sharded_model(); });
//   ranks.run([&](int64_t rank) { answer(models[rank]); });   // any number
//
// Outside of both a program is rank 0 of a world of one, so the same function
// also runs without them. Other worlds: comm/world.h.
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
  /// A collective that waits longer than this for a rank that never arrives is
  /// an error naming the ranks that are missing.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Threads that one rank's operators may use (at::set_num_threads in each
  /// rank); 0 divides the caller's threads between the ranks, at least 1 each.
  int intra_op_threads = 0;
  /// While the ranks live, malloc keeps what is freed instead of giving it back
  /// to the system and taking it anew, which costs threads a page fault for
  /// each 4 KB. It does so for the whole process; when the last such ranks have
  /// ended, glibc's settings are put back (docs/concepts/ranks.md: how far).
  bool keep_freed_memory = true;
  /// Each rank has a default CPU generator of its own (comm/rank_generator.h):
  /// while a function runs on ranks, LibTorch's is exchanged. Without, they
  /// draw from the process's in turns.
  bool own_generators = true;
};

/// Ranks that live as long as the object: their threads, generators, groups,
/// meshes and models stay from one run() to the next.
class DTENSOR_API Ranks {
 public:
  /// Throws ValueError if n < 1, RuntimeError when called from inside a rank.
  explicit Ranks(int64_t n, const RunRanksOptions& options = {});
  /// Ends the ranks: what they made may be looked at still.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Runs `fn` on all ranks, each in its thread, and returns when all have
  /// ended. They take over the caller's grad mode and other thread-local state
  /// as they are now. If any rank throws, the ranks end: this call throws the
  /// error that run_ranks does, and later ones refuse. Throws RuntimeError from
  /// inside a rank, and while another thread's call is going on.
  void run(const std::function<void()>& fn);
  /// The same with the rank as an argument.
  void run(const std::function<void(int64_t)>& fn);

  /// How many there are.
  int64_t size() const;

 private:
  std::unique_ptr<detail::RankThreads> threads_;
};

/// Runs `fn` on `n` ranks, each a thread of its own, and returns when all have
/// ended: Ranks for one call, after which the caller's default generator goes
/// on where rank 0's stopped. If any rank throws, all ranks waiting for it are
/// ended, and one error tells every rank's failure and the collective it was
/// in. If exactly one rank failed by itself its message is kept whole inside.
/// Throws ValueError if n < 1, RuntimeError when called from inside a rank.
DTENSOR_API void run_ranks(
    int64_t n,
    const std::function<void()>& fn,
    const RunRanksOptions& options = {});

/// The same with the rank as an argument.
DTENSOR_API void run_ranks(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const RunRanksOptions& options = {});

} // namespace dtensor
