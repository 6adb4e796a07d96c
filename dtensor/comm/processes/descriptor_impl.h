// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <unistd.h>

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

} // namespace dtensor::detail
