// SPDX-License-Identifier: BSD-3-Clause
// Cursor over the bytes of a GGUF file, and the reader of its key-value pairs.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_file.h>

#include <dtensor/format_text.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace dtensor::detail {

constexpr const char* kGgufAlignment = "general.alignment";

/// A position in the file. All reads end within the file.
class GgufCursor {
 public:
  explicit GgufCursor(const MappedFile& file) : file_(file) {}

  uint64_t position() const {
    return position_;
  }

  /// Reads a number. Like all functions below, throws ValueError at the end of
  /// the file.
  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take_bytes(sizeof(Number)), sizeof(Number));
    return value;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    return {reinterpret_cast<const char*>(take_bytes(length)), length};
  }

  /// Reads a number of items that have at least `bytes_each` bytes each.
  uint64_t count(uint64_t bytes_each) {
    const auto value = number<uint64_t>();
    if (value > left() / bytes_each) {
      refuse(detail::format_text(
          "a count of {}, but only {} left", value, pluralize(left(), "byte")));
    }
    return value;
  }

  /// Throws ValueError with the position and the problem.
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_file(
        file_.path(), detail::format_text("at byte {}: {}", position_, why));
  }

 private:
  uint64_t left() const {
    return file_.size() - position_;
  }

  const std::byte* take_bytes(uint64_t bytes) {
    if (bytes > left()) {
      refuse(detail::format_text(
          "end of file, but {} needed", pluralize(bytes, "more byte")));
    }
    const auto* here = file_.data() + position_;
    position_ += bytes;
    return here;
  }

  const MappedFile& file_;
  uint64_t position_ = 0;
};

/// Reads `count` key-value pairs. Throws ValueError for duplicate keys, unknown
/// types, and arrays of arrays.
void read_gguf_pairs(
    std::map<std::string, WeightMetadata>& metadata,
    GgufCursor& cursor,
    uint64_t count);

} // namespace dtensor::detail
