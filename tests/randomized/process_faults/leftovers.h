// SPDX-License-Identifier: BSD-3-Clause
// Resources that remain after a run. No resources should remain.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dtensor::process_faults {

/// Runs this program again in its own namespaces, where is_inside() is true.
/// All processes, sockets and shared memory there belong to the run. Returns if
/// the user is not allowed to create namespaces.
void enter_namespaces(int argc, char** argv);
bool is_inside();

/// Sets up the namespaces of enter_namespaces(): a loopback interface and an
/// empty /dev/shm. Throws on failure.
void furnish();

/// Makes this process the parent of orphaned descendants.
void adopt_orphans();

/// Returns the resources that remain a moment after the end of a run:
/// processes, and, inside the program's own namespaces (`inside`), open sockets
/// and named shared memory.
std::vector<std::string> leftovers(bool inside);

/// Returns files that are neither a rank's output nor its flight record.
/// Removes all files.
std::vector<std::string> clear_folder(const std::filesystem::path& folder);

} // namespace dtensor::process_faults
