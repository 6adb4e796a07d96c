// SPDX-License-Identifier: BSD-3-Clause
// Removal of folders that saves have created. Other folders are never removed.
#pragma once

#include <string>

namespace dtensor::detail {

/// Returns true if `path` is a folder with a checkpoint.json of
/// save_checkpoint(). Follows symbolic links.
bool is_checkpoint(const std::string& path);

/// Returns why a checkpoint must not replace the entry at `path`; "" if it may.
/// Only a checkpoint, an empty folder, or a link to either may be replaced.
std::string problem_of_replacing(const std::string& path);

/// Returns true if `path` is a folder that contains only remains of a save that
/// was killed or of remove_checkpoint().
bool is_left_by_saver(const std::string& path);

/// Removes a checkpoint, or its remains, as far as permitted. Removes
/// checkpoint.json last, so that the rest stays recognizable as a checkpoint.
/// Removes only the link if `path` is a link.
void remove_checkpoint(const std::string& path);

} // namespace dtensor::detail
