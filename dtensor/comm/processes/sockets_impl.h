// SPDX-License-Identifier: BSD-3-Clause
// File descriptors, and helpers for sockets of the rendezvous and of failure
// reports.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// Owner of a file descriptor, closed on destruction.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }

  int get() const {
    return fd_;
  }
  int release() {
    return std::exchange(fd_, -1);
  }

 private:
  int fd_;
};

using Deadline = std::chrono::steady_clock::time_point;

/// Returns a socket that listens at `host`, an address of this host. Port 0
/// selects any free port. Throws RuntimeError.
Descriptor listen_at(const std::string& host, int port);

/// Returns a non-blocking connection once a process listens at the address.
/// Throws RuntimeError at the deadline.
Descriptor await_listener(const std::string& host, int port, Deadline deadline);

/// Returns the time until the deadline for poll(), at least 0.
int milliseconds_to(Deadline deadline);

/// Returns true if `socket` has one of poll()'s `events` by the deadline.
bool is_ready(const Descriptor& socket, int16_t events, Deadline deadline);

/// Returns true if `table`, in the format of /proc/net/tcp or tcp6, lists an
/// open connection from another host to local port `port`.
bool lists_remote_connection(std::string_view table, int port);

/// Returns true if another host is connected to local port `port`. A process's
/// connections close when it ends.
bool has_remote_connections(int port);

} // namespace dtensor::detail
