// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/json_impl.h>

#include <sstream>

namespace dtensor::detail {
namespace {

std::string joined(
    const std::vector<std::string>& items,
    const char* separator) {
  std::string text;
  for (const auto& item : items) {
    text += (text.empty() ? "" : separator) + item;
  }
  return text;
}

} // namespace

std::string json_string(std::string_view text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += "\\u00";
      json += kHex[c / 16];
      json += kHex[c % 16];
    } else {
      json += c;
    }
  }
  return json + '"';
}

std::string json_number(double number) {
  std::ostringstream text;
  text.precision(15);
  text << number;
  return text.str();
}

std::string json_number(int64_t number) {
  return std::to_string(number);
}

std::string json_bool(bool value) {
  return value ? "true" : "false";
}

std::string json_object(
    const std::vector<std::pair<std::string_view, std::string>>& members) {
  std::vector<std::string> items;
  for (const auto& [name, value] : members) {
    items.push_back(json_string(name) + ": " + value);
  }
  return "{" + joined(items, ", ") + "}";
}

std::string json_array(const std::vector<std::string>& items) {
  return "[" + joined(items, ", ") + "]";
}

std::string json_lines(const std::vector<std::string>& items) {
  return "[" + std::string(items.empty() ? "" : "\n  ") +
      joined(items, ",\n  ") + "\n]";
}

} // namespace dtensor::detail
