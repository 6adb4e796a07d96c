// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// Checks that ranks can rendezvous through the file at `path`. Call this
/// function before a c10d::FileStore opens the file, because FileStore waits
/// forever on some files. The checks: the path is a regular file or does not
/// exist yet, this user may write it, its folder exists, no other process keeps
/// it locked until the deadline, and its content is that of a FileStore. Throws
/// ValueError, or RuntimeError if another process is the cause.
void check_meeting_file(const std::string& path, Deadline deadline);

/// Removes the file at `path` if the stores of all `ranks` have been destroyed.
/// c10d::FileStore leaves the file if two ranks destroy their stores at the
/// same moment: FileStore counts a store first as finished and then as closed,
/// and the last rank to close may not be the last rank to finish. Call this
/// function after the rank's own store has been destroyed.
void remove_finished_meeting_file(
    const std::string& path,
    int64_t ranks) noexcept;

} // namespace dtensor::detail
