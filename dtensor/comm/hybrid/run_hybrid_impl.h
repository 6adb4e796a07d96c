// SPDX-License-Identifier: BSD-3-Clause
// A world whose ranks are threads of several processes.
#pragma once

#include <dtensor/comm/run_world.h>

namespace dtensor::detail {

/// Runs `fn` on `here` threads of this process, each of them a rank of one
/// world with those of the launcher's other processes, all of which call it
/// with as many: thread i of process p is rank p * here + i.
/// Throws as run_ranks does, and where a rank of another process has failed.
void run_hybrid(
    int64_t here,
    const std::function<void()>& fn,
    const RunWorldOptions& options);

} // namespace dtensor::detail
