// SPDX-License-Identifier: BSD-3-Clause
// Folders that may be removed: those that savers have made, and no others.
#pragma once

#include <string>

namespace dtensor::detail {

/// Whether `path` is a folder with a checkpoint.json that save_checkpoint has
/// written. Symbolic links are followed.
bool is_checkpoint(const std::string& path);

/// Says why a checkpoint may not take the place of what is at `path`; empty if
/// it may: that is a checkpoint, an empty folder, or a link to one.
std::string problem_of_replacing(const std::string& path);

/// Whether `path` is a folder with nothing in it but what a save that was
/// killed, or remove_checkpoint(), leaves.
bool is_left_by_saver(const std::string& path);

/// Removes a checkpoint, or what is left of it, as far as the system lets it.
/// checkpoint.json goes last, so that the rest is known to be a checkpoint. A
/// link is removed alone.
void remove_checkpoint(const std::string& path);

} // namespace dtensor::detail
