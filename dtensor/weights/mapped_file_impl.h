// SPDX-License-Identifier: BSD-3-Clause
// A file in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace dtensor::detail {

/// A file's bytes, for as long as somebody holds it. Pages that are not
/// touched are not read.
class MappedFile {
 public:
  /// Throws ValueError for a file that cannot be opened.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  const std::byte* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }
  /// Lets go of the pages that lie within; they are read again if need be.
  static void forget(const std::byte* begin, size_t bytes);
  /// Says that they are wanted soon.
  static void read_ahead(const std::byte* begin, size_t bytes);

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

using MappedFilePtr = std::unique_ptr<MappedFile>;

/// [open_weights] with the file's name and what to do.
[[noreturn]] void refuse_file(const std::string& path, const std::string& why);

} // namespace dtensor::detail
