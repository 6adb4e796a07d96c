// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/connections_impl.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace dtensor::detail {
namespace {

struct End {
  std::string address;
  int port = 0;
};

// Parses an address and port such as "0100007F:1F90".
End parse_end(const std::string& text) {
  const size_t colon = text.find(':');
  End end{text.substr(0, colon), 0};
  if (colon != std::string::npos) {
    std::from_chars(
        text.data() + colon + 1, text.data() + text.size(), end.port, 16);
  }
  return end;
}

} // namespace

bool lists_remote_connection(std::string_view table, int port) {
  constexpr const char* kEstablished = "01";
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    fields >> number >> local >> remote >> state;
    const End here = parse_end(local);
    if (state == kEstablished && here.port == port &&
        here.address != parse_end(remote).address) {
      return true;
    }
  }
  return false;
}

bool has_remote_connections(int port) {
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(path);
    const std::string table{
        std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (lists_remote_connection(table, port)) {
      return true;
    }
  }
  return false;
}

} // namespace dtensor::detail
