// SPDX-License-Identifier: BSD-3-Clause
// How ranks of one host and one user find rank 0, without a port that is agreed
// on: rank 0 listens at a name of the abstract socket namespace, and tells each
// rank once where its store is.
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// Tells `port` to the ranks 1 to `size` - 1, each a process of this user, that
/// ask at `name`. A name that is too long for a socket is hashed. Returns when
/// all have asked. Nothing of it is left when this process ends.
/// Throws RuntimeError at the deadline, and where another process has the name.
void hand_out_port(
    const std::string& name,
    int port,
    int64_t size,
    Deadline deadline);

/// Asks at `name` for rank 0's port, as rank `rank`. Throws RuntimeError at the
/// deadline, and where rank 0 refuses or answers garbage.
int fetch_port(const std::string& name, int64_t rank, Deadline deadline);

} // namespace dtensor::detail
