// SPDX-License-Identifier: BSD-3-Clause
// format_text: fills values into a text with placeholders. The number of
// placeholders is checked when the call is compiled.
//
//   detail::format_text("rank {} of {}", 1, 4)  // "rank 1 of 4"
//
// A value is printed as operator<< prints it. "{{" and "}}" stand for braces.
#pragma once

#include <c10/util/StringUtil.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace dtensor::detail {

/// A literal with `Count` placeholders.
template <size_t Count>
class TextFormat {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): literals convert implicitly
  consteval TextFormat(const char* text) : text_(text) {
    size_t count = 0;
    for (size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] != '{' && text_[i] != '}') {
        continue;
      }
      if (i + 1 == text_.size()) {
        throw "a brace ends the text";
      }
      if (text_[i] == '{' && text_[i + 1] == '}') {
        ++count;
      } else if (text_[i] != text_[i + 1]) {
        throw "a brace is neither part of {} nor doubled";
      }
      ++i;
    }
    if (count != Count) {
      throw "the number of placeholders is not that of the values";
    }
  }
  std::string_view text() const {
    return text_;
  }

 private:
  std::string_view text_;
};

inline std::string fill_placeholders(
    std::string_view format,
    std::initializer_list<std::string> values) {
  std::string text;
  const auto* value = values.begin();
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      text += c;
      continue;
    }
    if (c == '{' && format[i + 1] == '}') {
      text += *value++;
    } else {
      text += c;
    }
    ++i;
  }
  return text;
}

template <class... Values>
std::string format_text(
    TextFormat<sizeof...(Values)> format,
    const Values&... values) {
  return fill_placeholders(format.text(), {std::string(c10::str(values))...});
}

/// Returns a count with its noun: "1 rank", "2 ranks".
template <class Count>
std::string pluralize(Count count, std::string_view noun) {
  return c10::str(count, " ", noun, count == 1 ? "" : "s");
}

} // namespace dtensor::detail
