// SPDX-License-Identifier: BSD-3-Clause
// Where ranks come from: run_ranks runs a function on n ranks, which are
// threads of this process.
//
//   run_ranks(4, [] {
//     auto mesh = init_device_mesh(torch::kCPU, {4}, {"tp"});
//     ...
//   });
//
// Outside run_ranks a program is rank 0 of a world of one, so the same
// function also runs without it.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace dtensor {

struct RunRanksOptions {
  /// A collective that waits longer than this for a rank that never arrives is
  /// an error naming the ranks that are missing.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Threads that one rank's operators may use (at::set_num_threads in each
  /// rank); 0 divides the caller's threads between the ranks, at least 1 each.
  int intra_op_threads = 0;
};

/// Runs `fn` on `n` ranks, each a thread of its own, and returns when all have
/// ended. If any rank throws, all ranks waiting for it are ended, and one
/// error tells every rank's failure and the collective it was in. If exactly
/// one rank failed by itself its message is kept whole inside.
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

/// This thread's rank and the number of ranks: 0 of 1 outside run_ranks.
DTENSOR_API int64_t get_rank();
DTENSOR_API int64_t get_world_size();

/// The group of these global ranks, in this order, of which the caller is one.
/// All members call it with the same ranks; ranks outside need not. The same
/// list gives the same channel. `label` is how messages call it.
DTENSOR_API GroupPtr
new_group(const std::vector<int64_t>& ranks, const std::string& label);

} // namespace dtensor
