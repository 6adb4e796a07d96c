// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/source_line_impl.h>

#include <dtensor/shortened_impl.h>

#include <sstream>
#include <string_view>

namespace dtensor::detail {
namespace {

constexpr std::string_view kFile = "File \"";

// `  File "model.py", line 12, in forward` -> model.py:12
std::string place_of(const std::string& line) {
  const auto begin = line.find(kFile) + kFile.size();
  const auto end = line.find('"', begin);
  constexpr std::string_view kLine = ", line ";
  const auto number = line.find(kLine, end);
  if (end == std::string::npos || number == std::string::npos) {
    return "";
  }
  const auto from = number + kLine.size();
  return line.substr(begin, end - begin) + ":" +
      line.substr(from, line.find(',', from) - from);
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin);
}

} // namespace

std::string source_line(const std::string& stack_trace) {
  std::istringstream lines(stack_trace);
  std::string found;
  std::string line;
  bool is_ours = false; // of the place before this line
  while (std::getline(lines, line)) {
    if (line.find(kFile) != std::string::npos) {
      const auto place = place_of(line);
      is_ours = !place.starts_with("torch/") && !place.starts_with('<') &&
          place.find("/torch/") == std::string::npos;
      found = is_ours || found.empty() ? place : found;
    } else if (is_ours) {
      found += ": " + trimmed(line);
      is_ours = false;
    }
  }
  return found;
}

std::string describe_source(const std::string& line) {
  return line.empty() ? "" : " at " + shortened(line);
}

} // namespace dtensor::detail
