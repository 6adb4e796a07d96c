// SPDX-License-Identifier: BSD-3-Clause
// Port for a job that passes the rendezvous address to its processes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <random>
#include <stdexcept>

/// Returns a free port of the loopback interface. A socket of this process
/// keeps the port until 16 later calls, so that neither another test nor a
/// connection takes the port before the job listens. The job can listen because
/// it sets SO_REUSEADDR, as the stores of LibTorch and of this library do.
inline int free_port() {
  constexpr size_t kKept = 16;
  static std::deque<int> kept;
  std::random_device random;
  std::uniform_int_distribution<int> ports(10000, 32767);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int port = ports(random);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      close(fd);
      continue;
    }
    // Set after the bind, which must fail if another test keeps the port.
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    kept.push_back(fd);
    if (kept.size() > kKept) {
      close(kept.front());
      kept.pop_front();
    }
    return port;
  }
  throw std::runtime_error("free_port: no port can be bound");
}
