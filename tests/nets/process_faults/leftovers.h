// SPDX-License-Identifier: BSD-3-Clause
// What a run leaves behind, which should be nothing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dtensor::process_faults {

/// Runs this program again, with "--inside" behind its arguments, in namespaces
/// of its own, where all processes, sockets and shared memory are its doing.
/// Returns if this user may not make any.
void enter_namespaces(int argc, char** argv);

/// Makes a place of what enter_namespaces() has run: a loopback interface and
/// an empty /dev/shm. Throws if that fails.
void furnish();

/// Makes this process the one that children of its children fall to.
void adopt_orphans();

/// What is there, within a moment of the end of a run: processes, and, where
/// all of them are ours (`inside`), sockets that somebody holds and shared
/// memory with a name.
std::vector<std::string> leftovers(bool inside);

/// Files that are neither a rank's output nor its flight record. Removes all.
std::vector<std::string> clear_folder(const std::filesystem::path& folder);

} // namespace dtensor::process_faults
