// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are child processes of a benchmark program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace bench {

/// Calls `fn` with its rank in each of `ranks` child processes, which have one
/// thread each and form a world over `backend`. Exits with 1 if a child fails.
/// The calling process must not have other threads yet.
void run_forked(
    int64_t ranks,
    const std::string& backend,
    const std::function<void(int64_t rank)>& fn);

} // namespace bench
