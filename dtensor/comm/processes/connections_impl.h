// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace dtensor::detail {

/// Returns whether a line of /proc/net/tcp or tcp6 in `table` is an open
/// connection from another host to `port` of this one.
bool lists_remote_connection(std::string_view table, int port);

/// Returns whether another host is connected to `port` of this one: the
/// connections of a process close when it ends.
bool has_remote_connections(int port);

} // namespace dtensor::detail
