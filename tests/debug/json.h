// SPDX-License-Identifier: BSD-3-Clause
// An independent parser for the JSON output of debug/. Throws for invalid JSON.
#pragma once

#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::testing {

/// A JSON value. Only the field of its type is set.
struct Json {
  enum class Type { kObject, kArray, kString, kNumber, kBool };
  Type type = Type::kObject;
  std::map<std::string, Json> members;
  std::vector<Json> items;
  std::string text;
  double number = 0;

  const Json& operator[](const std::string& name) const {
    return members.at(name);
  }
  bool has(const std::string& name) const {
    return members.count(name) > 0;
  }
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  Json whole() {
    auto value = this->value();
    skip();
    check(rest_.empty(), "more than one value");
    return value;
  }

 private:
  static void check(bool ok, const char* what) {
    if (!ok) {
      throw std::runtime_error(what);
    }
  }
  void skip() {
    while (!rest_.empty() && std::isspace(rest_.front()) != 0) {
      rest_.remove_prefix(1);
    }
  }
  char next() {
    check(!rest_.empty(), "ends too early");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  bool take(char c) {
    skip();
    const bool is_there = !rest_.empty() && rest_.front() == c;
    rest_.remove_prefix(is_there ? 1 : 0);
    return is_there;
  }
  void expect(char c) {
    check(take(c), "another sign is expected");
  }

  Json value() {
    skip();
    check(!rest_.empty(), "no value");
    Json json;
    if (rest_.front() == '{') {
      json.type = Json::Type::kObject;
      read_members(json);
    } else if (rest_.front() == '[') {
      json.type = Json::Type::kArray;
      read_items(json);
    } else if (rest_.front() == '"') {
      json.type = Json::Type::kString;
      json.text = string();
    } else if (rest_.starts_with("true") || rest_.starts_with("false")) {
      json.type = Json::Type::kBool;
      rest_.remove_prefix(rest_.front() == 't' ? 4 : 5);
    } else {
      json.type = Json::Type::kNumber;
      size_t length = 0;
      json.number = std::stod(std::string(rest_), &length);
      rest_.remove_prefix(length);
    }
    return json;
  }
  void read_members(Json& json) {
    expect('{');
    while (!take('}')) {
      if (!json.members.empty()) {
        expect(',');
      }
      skip();
      auto name = string();
      expect(':');
      check(json.members.emplace(name, value()).second, "a member twice");
    }
  }
  void read_items(Json& json) {
    expect('[');
    while (!take(']')) {
      if (!json.items.empty()) {
        expect(',');
      }
      json.items.push_back(value());
    }
  }
  std::string string() {
    expect('"');
    std::string text;
    for (char c = next(); c != '"'; c = next()) {
      check(static_cast<unsigned char>(c) >= 0x20, "a control character");
      if (c != '\\') {
        text += c;
        continue;
      }
      c = next();
      check(c == '"' || c == '\\' || c == 'u', "an unknown escape");
      if (c == 'u') {
        const auto code = std::string(rest_.substr(0, 4));
        rest_.remove_prefix(4);
        c = static_cast<char>(std::stoi(code, nullptr, 16));
      }
      text += c;
    }
    return text;
  }

  std::string_view rest_;
};

inline Json read_json(std::string_view text) {
  return JsonReader(text).whole();
}

} // namespace dtensor::testing
