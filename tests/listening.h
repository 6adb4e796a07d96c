// SPDX-License-Identifier: BSD-3-Clause
// Sockets at which this process listens.
#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace dtensor::test {

/// Returns the addresses of those sockets in the format of /proc/net/tcp, such
/// as "0100007F:1F90" for port 8080 of 127.0.0.1.
inline std::vector<std::string> listening_addresses() {
  std::set<std::string> mine;
  for (const auto& file :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone; // the descriptor of the iterator
    mine.insert(std::filesystem::read_symlink(file, gone).string());
  }
  std::vector<std::string> found;
  for (const auto* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line); // the heading
    while (std::getline(in, line)) {
      std::istringstream text(line);
      std::vector<std::string> fields;
      for (std::string field; text >> field;) {
        fields.push_back(field);
      }
      constexpr size_t kAddress = 1;
      constexpr size_t kState = 3;
      constexpr size_t kInode = 9;
      if (fields.size() > kInode && fields[kState] == "0A" &&
          mine.count("socket:[" + fields[kInode] + "]") > 0) {
        found.push_back(fields[kAddress]);
      }
    }
  }
  return found;
}

} // namespace dtensor::test
