// SPDX-License-Identifier: BSD-3-Clause
// Output of reports to files.
#pragma once

#include <dtensor/error.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace dtensor::detail {

/// Writes `text` to a file. Throws RuntimeError that begins with `where` on
/// failure.
inline void write_file(
    const char* where,
    const std::string& file_name,
    const std::string& text) {
  errno = 0;
  std::ofstream file(file_name);
  file << text;
  file.close();
  DTENSOR_CHECK(
      !file.fail(),
      "[{}] cannot write \"{}\": {}. Pass the name of a file in a folder that "
      "exists.",
      where,
      file_name,
      std::strerror(errno));
}

} // namespace dtensor::detail
