// SPDX-License-Identifier: BSD-3-Clause
// A file in memory.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor::detail {

/// A file's bytes, for as long as somebody holds it. Pages that are not
/// touched are not read.
class MappedFile {
 public:
  /// Throws ValueError for a file that cannot be opened.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// [open_weights] with the file's name and what to do.
[[noreturn]] void refuse_file(const std::string& path, const std::string& why);

} // namespace dtensor::detail
