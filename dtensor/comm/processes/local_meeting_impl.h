// SPDX-License-Identifier: BSD-3-Clause
// Rendezvous of ranks of one host and one user without an agreed port. Rank 0
// listens at a name in the abstract socket namespace and sends each rank the
// port of its store.
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// Serves `port` at `name` to ranks 1 to `size` - 1, which must be processes of
/// this user. A name that is too long for a socket is hashed. Returns when all
/// ranks have received the port. The system frees the name when this process
/// ends. Throws RuntimeError at the deadline, or if another process uses the
/// name.
void hand_out_port(
    const std::string& name,
    int port,
    int64_t size,
    Deadline deadline);

/// Requests rank 0's port at `name`, as rank `rank`. Throws RuntimeError at the
/// deadline, or if rank 0 refuses or sends an invalid answer.
int fetch_port(const std::string& name, int64_t rank, Deadline deadline);

} // namespace dtensor::detail
