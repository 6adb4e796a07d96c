// SPDX-License-Identifier: BSD-3-Clause
// RAII file descriptors, and a check that throws when a system call fails.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace launcher {

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) {
      ::close(fd_);
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

// Returns the result of a system call. Throws "<what>: <reason>" if it is
// negative.
inline int checked(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return result;
}

} // namespace launcher
