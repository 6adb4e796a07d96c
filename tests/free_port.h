// SPDX-License-Identifier: BSD-3-Clause
// Port for a job that passes the rendezvous address to its processes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

/// Returns a port of the loopback interface that was free a moment ago.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  const bool found =
      bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  const int error = errno;
  close(fd);
  if (!found) {
    throw std::system_error(error, std::generic_category(), "free_port");
  }
  return ntohs(address.sin_port);
}
