// SPDX-License-Identifier: BSD-3-Clause
// Folders of checkpoints with numbered names: step_100, step_200.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <optional>
#include <string>

namespace dtensor {

/// Returns the path of the checkpoint in `folder` with the largest number at
/// the end of its name; nullopt if there is none. Only complete checkpoints are
/// considered.
DTENSOR_API std::optional<std::string> latest_checkpoint(
    const std::string& folder);

/// Keeps the `count` checkpoints with the largest numbers in `folder`. Removes
/// all others, and the files that interrupted saves have left. Only rank 0 of
/// the world removes them; other ranks return at once. Entries without a number
/// at the end, symbolic links, and folders without a checkpoint.json of
/// save_checkpoint() are neither removed nor counted. Throws ValueError for a
/// count below 1.
DTENSOR_API void keep_last(const std::string& folder, int64_t count);

} // namespace dtensor
