// SPDX-License-Identifier: BSD-3-Clause
// SharedSegment: memory that processes of one user share.
//
// It has no name in any file system. One process makes it and says its
// descriptor; others open that through /proc, map it, and close it. It is gone
// with the last mapping, however the processes end.
#pragma once

#include <dtensor/comm/processes/descriptor_impl.h>

#include <cstddef>
#include <cstdint>

namespace dtensor::detail {

class SharedSegment {
 public:
  /// A new one, of zeros. Its size is fixed, so that no peer can cut it off.
  static SharedSegment create(size_t bytes);
  /// The one that process `pid` made and has as `descriptor`. Throws
  /// RuntimeError if that is not such a segment of this user, of that size.
  static SharedSegment open(int64_t pid, int64_t descriptor, size_t bytes);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  std::byte* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }
  /// By which others open it; -1 once it is closed.
  int descriptor() const {
    return descriptor_.get();
  }
  /// Nobody can open it any more; who has it mapped keeps it.
  void close_descriptor() {
    descriptor_ = Descriptor();
  }

 private:
  SharedSegment(int descriptor, size_t bytes);
  void map();

  Descriptor descriptor_;
  size_t size_;
  std::byte* data_ = nullptr;
};

} // namespace dtensor::detail
