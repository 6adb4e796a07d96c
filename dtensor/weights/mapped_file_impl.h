// SPDX-License-Identifier: BSD-3-Clause
// Memory-mapped files, and names of files in indices.
#pragma once

#include <dtensor/format_text.h>

#include <cstddef>
#include <memory>
#include <string>

namespace dtensor::detail {

/// The bytes of a file, mapped while this object lives. Pages that are not
/// accessed are not read.
class MappedFile {
 public:
  /// Throws ValueError if the file cannot be opened or is not a regular file.
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
  /// Releases the pages within the range; they are read again if accessed.
  static void forget(const std::byte* begin, size_t bytes);
  /// Announces to the system that the range is needed soon.
  static void read_ahead(const std::byte* begin, size_t bytes);

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

using MappedFilePtr = std::unique_ptr<MappedFile>;

/// Advice in errors about weight files.
constexpr const char* kWeightFileAdvice =
    "Pass a safetensors file, the index of several, a GGUF file, or an "
    "exported program";

/// Throws ValueError: "[open_weights] path: why. advice."
[[noreturn]] void refuse_file_with(
    const std::string& advice,
    const std::string& path,
    const std::string& why);
[[noreturn]] inline void refuse_file(
    const std::string& path,
    const std::string& why) {
  refuse_file_with(kWeightFileAdvice, path, why);
}
template <class First, class... Others>
[[noreturn]] void refuse_file(
    const std::string& path,
    TextFormat<1 + sizeof...(Others)> why,
    const First& value,
    const Others&... values) {
  refuse_file(path, format_text(why, value, values...));
}

/// Opens a file for reading, without waiting for a FIFO's writer. Returns its
/// descriptor. Returns -1, with the reason, if the file cannot be opened or is
/// not a regular file.
int open_regular_file(const std::string& path, std::string& why_not);

/// Returns the reason why `name` must not be read, or an empty text. `name` is
/// an entry of the file `list` (an index or checkpoint.json). A name must be a
/// relative path without "..". Symbolic links may lead to the list's folder. If
/// the list is itself a link, they may also lead to the folder of its target,
/// because a Hugging Face cache keeps all files behind such links.
std::string problem_of_inner_file(
    const std::string& list,
    const std::string& name);

} // namespace dtensor::detail
