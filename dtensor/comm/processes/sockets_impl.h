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

/// Hands `text` to `readers` processes of this host and user that ask for
/// `name`. Nothing of it is left when this process ends, however it does.
/// Throws RuntimeError at the deadline.
void hand_out(
    const std::string& name,
    const std::string& text,
    int64_t readers,
    Deadline deadline);

/// What a process of this host and user hands out under `name`.
std::string fetch(const std::string& name, Deadline deadline);

} // namespace dtensor::detail
