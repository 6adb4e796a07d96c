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
  /// Throws ValueError for what cannot be opened or is no regular file.
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

/// Advice of errors about files of weights.
constexpr const char* kGiveWeights =
    "Give a safetensors file, the index of several, a GGUF file, or an "
    "exported "
    "program";

/// Throws ValueError: "[open_weights] path: why. advice."
[[noreturn]] void refuse_file(
    const std::string& path,
    const std::string& why,
    const std::string& advice = kGiveWeights);

/// Opens a file for reading, without waiting for a FIFO's writer. Returns its
/// descriptor; -1, with the reason, for what cannot be opened or is no regular
/// file.
int open_regular_file(const std::string& path, std::string& why_not);

} // namespace dtensor::detail
