// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <string>

namespace dtensor::detail {

/// Checks that ranks can meet in the file at `path`, before a c10d::FileStore
/// opens it, which waits for ever for some files: it is a regular file or does
/// not exist yet, this user may write it, its folder exists, no other process
/// keeps it locked up to the deadline, and its content is a store's.
/// Throws ValueError, or RuntimeError where another process is the cause.
void check_meeting_file(const std::string& path, Deadline deadline);

} // namespace dtensor::detail
