// SPDX-License-Identifier: BSD-3-Clause
// Texts with one part that is very long, for tests that errors do not quote all
// of it.
#pragma once

#include <cctype>
#include <string>
#include <vector>

namespace dtensor::test_text {

constexpr size_t kLongText = 20'000;
/// Maximum length of an error that quotes parts of a text.
constexpr size_t kLongestError = 2'000;

/// Returns `part` repeated to kLongText bytes.
inline std::string repeated_to_length(const std::string& part) {
  std::string all;
  while (all.size() < kLongText) {
    all += part;
  }
  return all;
}

/// Returns the text with each of its words lengthened in turn, and each of its
/// blanks followed by many copies of the word before it.
inline std::vector<std::string> with_long_parts(const std::string& text) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ||
        c == '.';
  };
  std::vector<std::string> all;
  for (size_t begin = 0; begin < text.size();) {
    if (!is_word(text[begin])) {
      ++begin;
      continue;
    }
    auto end = begin;
    while (end < text.size() && is_word(text[end])) {
      ++end;
    }
    const auto word = text.substr(begin, end - begin);
    const auto before = text.substr(0, end);
    all.push_back(before + repeated_to_length(word) + text.substr(end));
    all.push_back(
        before + std::string(kLongText, 'q') + text.substr(end)); // no word
    const auto next = end < text.size() ? text.substr(end, 1) : " ";
    all.push_back(before + repeated_to_length(next + word) + text.substr(end));
    begin = end;
  }
  return all;
}

} // namespace dtensor::test_text
