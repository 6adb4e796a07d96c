// SPDX-License-Identifier: BSD-3-Clause
// Port for a job that passes the rendezvous address to its processes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <stdexcept>

/// Returns a free port of the loopback interface. The port lies below the ports
/// that Linux assigns by itself (32768 and up), so that connections of other
/// processes do not take the port before the job listens.
inline int free_port() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(10000, 32767);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int port = ports(random);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free =
        bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (free) {
      return port;
    }
  }
  throw std::runtime_error("free_port: no port can be bound");
}
