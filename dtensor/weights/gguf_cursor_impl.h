// SPDX-License-Identifier: BSD-3-Clause
// Bytes of a GGUF file, read from front to end, and its key-value pairs.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_file.h>

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace dtensor::detail {

constexpr const char* kGgufAlignment = "general.alignment";

/// A position in the file; what is read ends within it.
class GgufCursor {
 public:
  explicit GgufCursor(const MappedFile& file) : file_(file) {}

  uint64_t position() const {
    return position_;
  }

  /// Throws ValueError where the file ends, as all below.
  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof(Number)), sizeof(Number));
    return value;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    return {reinterpret_cast<const char*>(take(length)), length};
  }

  /// The number of things that have at least so many bytes each.
  uint64_t count(uint64_t bytes_each) {
    const auto value = number<uint64_t>();
    if (value > left() / bytes_each) {
      refuse(
          c10::str("it counts ", value, " where ", left(), " bytes are left"));
    }
    return value;
  }

  /// Throws ValueError: the position and what is wrong there.
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_file(file_.path(), c10::str("at byte ", position_, " ", why));
  }

 private:
  uint64_t left() const {
    return file_.size() - position_;
  }

  const std::byte* take(uint64_t bytes) {
    if (bytes > left()) {
      refuse(c10::str("it ends: ", bytes, " more bytes are needed"));
    }
    const auto* here = file_.data() + position_;
    position_ += bytes;
    return here;
  }

  const MappedFile& file_;
  uint64_t position_ = 0;
};

/// Reads `count` key-value pairs. Throws ValueError for a key that is there
/// twice, unknown types, and arrays of arrays.
void read_gguf_pairs(
    std::map<std::string, WeightMetadata>& metadata,
    GgufCursor& cursor,
    uint64_t count);

} // namespace dtensor::detail
