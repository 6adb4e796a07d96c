// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace dtensor::detail {

/// Returns true if `table`, in the format of /proc/net/tcp or tcp6, lists an
/// open connection from another host to local port `port`.
bool lists_remote_connection(std::string_view table, int port);

/// Returns true if another host is connected to local port `port`. A process's
/// connections close when it ends.
bool has_remote_connections(int port);

} // namespace dtensor::detail
