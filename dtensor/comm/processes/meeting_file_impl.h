// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <string>

namespace dtensor::detail {

/// Checks that ranks can rendezvous through the file at `path`. Call it before
/// a c10d::FileStore opens the file, because FileStore waits forever on some
/// files. The checks: the path is a regular file or does not exist yet, this
/// user may write it, its folder exists, no other process keeps it locked until
/// the deadline, and its content is that of a FileStore. Throws ValueError, or
/// RuntimeError if another process is the cause.
void check_meeting_file(const std::string& path, Deadline deadline);

} // namespace dtensor::detail
