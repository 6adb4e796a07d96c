// SPDX-License-Identifier: BSD-3-Clause
// The few sockets that a rendezvous needs.
#pragma once

#include <dtensor/comm/processes/descriptor_impl.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace dtensor::detail {

using Deadline = std::chrono::steady_clock::time_point;

/// A socket that listens at that address of this host and at no other; port 0
/// is any free one. Throws RuntimeError.
Descriptor listen_at(const std::string& host, int port);

/// Returns once somebody listens there. Throws RuntimeError at the deadline.
void await_listener(const std::string& host, int port, Deadline deadline);

/// From now on, at least 0; for poll().
int milliseconds_to(Deadline deadline);

/// Returns whether `socket` has one of poll()'s `events` by the deadline.
bool is_ready(const Descriptor& socket, int16_t events, Deadline deadline);

} // namespace dtensor::detail
