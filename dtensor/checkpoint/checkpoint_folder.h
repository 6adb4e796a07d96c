// SPDX-License-Identifier: BSD-3-Clause
// A folder of checkpoints whose names end in a number: step_100, step_200.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <optional>
#include <string>

namespace dtensor {

/// The path of the checkpoint in `folder` whose name ends in the largest
/// number; none if there is none. Only whole ones have a name.
DTENSOR_API std::optional<std::string> latest_checkpoint(
    const std::string& folder);

/// Removes all but the `count` checkpoints in `folder` with the largest
/// numbers, and what saves that were killed have left. Rank 0 of the world does
/// it, and the others return at once. What does not end in a number, is a
/// symbolic link, or has no checkpoint.json as save_checkpoint wrote it, stays
/// and is not counted. Throws ValueError for a count below 1.
DTENSOR_API void keep_last(const std::string& folder, int64_t count);

} // namespace dtensor
