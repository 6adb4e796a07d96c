// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are processes: children of a benchmark program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace bench {

/// Calls `fn` with its rank in each of `ranks` children, which have one thread
/// and are a world over `backend`. Ends the program with 1 when a child fails.
/// Wants a process that has no threads yet.
void run_forked(
    int64_t ranks,
    const std::string& backend,
    const std::function<void(int64_t rank)>& fn);

} // namespace bench
