// SPDX-License-Identifier: BSD-3-Clause
// A port for a job whose processes are told where to meet.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/// One of the loopback's, free a moment ago.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  bind(fd, generic, size);
  getsockname(fd, generic, &size);
  close(fd);
  return ntohs(address.sin_port);
}
