// SPDX-License-Identifier: BSD-3-Clause
// SharedSegment: memory shared by processes of one user.
//
// The segment has no name in any file system. One process creates the segment
// and publishes its descriptor. Other processes open the segment through
// /proc, map it, and close their own descriptors. The memory is freed with
// the last mapping, however the processes end.
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dtensor::detail {

class SharedSegment {
 public:
  /// Creates a segment of zeros. Its size is sealed, so that no peer can
  /// truncate it.
  static SharedSegment create(size_t bytes);
  /// Opens the segment that process `pid` created as `descriptor`. Throws
  /// RuntimeError if the descriptor is not a segment of this user with this
  /// size.
  static SharedSegment open(int64_t pid, int64_t descriptor, size_t bytes);

  std::byte* data() const {
    return data_.get();
  }
  /// Descriptor by which other processes open the segment; -1 once closed.
  int descriptor() const {
    return descriptor_.get();
  }
  /// Prevents further processes from opening the segment; existing mappings
  /// remain.
  void close_descriptor() {
    descriptor_ = Descriptor();
  }

 private:
  struct Unmap {
    size_t size;
    void operator()(std::byte* data) const;
  };

  SharedSegment(int descriptor, size_t bytes);
  void map();

  Descriptor descriptor_;
  size_t size_;
  std::unique_ptr<std::byte, Unmap> data_;
};

} // namespace dtensor::detail
