// SPDX-License-Identifier: BSD-3-Clause
// shortened(): the beginning of an external text, such as a name in a file, for
// error messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dtensor::detail {

/// Returns the text, or its beginning and "..." if it has more than `most`
/// bytes. Characters of several bytes are not divided.
inline std::string shortened(std::string_view text, size_t most = 200) {
  if (text.size() <= most) {
    return std::string(text);
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) {
    --most; // inside a character in UTF-8
  }
  return std::string(text.substr(0, most)) + "...";
}

} // namespace dtensor::detail
