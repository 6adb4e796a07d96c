// SPDX-License-Identifier: BSD-3-Clause
// A world with ranks in threads of several processes.
#pragma once

#include <dtensor/comm/run_world.h>

namespace dtensor::detail {

/// Runs `fn` on `here` threads of this process. Together with the threads of
/// the launcher's other processes they are the ranks of one world: thread i of
/// process p is rank p * here + i. All processes must call it with the same
/// `here`. Throws as run_ranks does, and also if a rank of another process has
/// failed.
void run_hybrid(
    int64_t here,
    const std::function<void()>& fn,
    const RunWorldOptions& options);

} // namespace dtensor::detail
