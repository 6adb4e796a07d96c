// SPDX-License-Identifier: BSD-3-Clause
#include "wordpiece.h"

#include <utf8proc.h>

#include <fstream>
#include <stdexcept>

namespace embed {
namespace {

using Letters = std::vector<utf8proc_int32_t>;

Letters letters_of(const std::string& text) {
  Letters all;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t letter = 0;
    auto length = utf8proc_iterate(bytes, left, &letter);
    if (length <= 0) { // invalid UTF-8
      letter = 0xFFFD;
      length = 1;
    }
    all.push_back(letter);
    bytes += length;
    left -= length;
  }
  return all;
}

void append(std::string& text, utf8proc_int32_t letter) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(letter, bytes);
  text.append(
      reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool is_space(utf8proc_int32_t letter) {
  const auto kind = utf8proc_category(letter);
  return letter == '\t' || letter == '\n' || letter == '\r' ||
      (kind >= UTF8PROC_CATEGORY_ZS && kind <= UTF8PROC_CATEGORY_ZP);
}

bool is_nothing(utf8proc_int32_t letter) {
  const auto kind = utf8proc_category(letter);
  return letter == 0 || letter == 0xFFFD || kind == UTF8PROC_CATEGORY_CC ||
      kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CN ||
      kind == UTF8PROC_CATEGORY_CO;
}

// True for punctuation, including ASCII characters that Unicode counts as
// symbols.
bool is_punctuation(utf8proc_int32_t letter) {
  const auto kind = utf8proc_category(letter);
  return (letter >= 33 && letter <= 47) || (letter >= 58 && letter <= 64) ||
      (letter >= 91 && letter <= 96) || (letter >= 123 && letter <= 126) ||
      (kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO);
}

bool is_ideograph(utf8proc_int32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
      (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
      (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
      (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// Returns lower-case letters without accents.
Letters plain(utf8proc_int32_t letter) {
  utf8proc_int32_t parts[32];
  int last = 0;
  const auto count =
      utf8proc_decompose_char(letter, parts, 32, UTF8PROC_DECOMPOSE, &last);
  Letters all;
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    if (utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN) {
      all.push_back(utf8proc_tolower(parts[i]));
    }
  }
  return all;
}

// Splits into words and single punctuation characters.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  const auto end_word = [&] {
    if (!words.back().empty()) {
      words.emplace_back();
    }
  };
  for (const auto letter : letters_of(text)) {
    if (is_space(letter)) {
      end_word();
    } else if (!is_nothing(letter)) {
      for (const auto part : plain(letter)) {
        const bool alone = is_punctuation(part) || is_ideograph(letter);
        if (alone) {
          end_word();
        }
        append(words.back(), part);
        if (alone) {
          end_word();
        }
      }
    }
  }
  if (words.back().empty()) {
    words.pop_back();
  }
  return words;
}

} // namespace

WordPiece::WordPiece(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    numbers_.emplace(line, static_cast<int64_t>(numbers_.size()));
  }
  if (numbers_.count("[CLS]") == 0) {
    throw std::runtime_error(path + ": not a BERT vocabulary");
  }
}

void WordPiece::add_word(const std::string& word, std::vector<int64_t>& out)
    const {
  const auto before = out.size();
  const auto letters = letters_of(word);
  constexpr size_t kLongest = 100;
  bool is_known = letters.size() <= kLongest;
  for (size_t begin = 0; begin < word.size() && is_known;) {
    size_t end = word.size();
    for (; end > begin; --end) {
      const auto piece =
          (begin > 0 ? "##" : "") + word.substr(begin, end - begin);
      const auto found = numbers_.find(piece);
      if (found != numbers_.end()) {
        out.push_back(found->second);
        break;
      }
    }
    is_known = end > begin;
    begin = end;
  }
  if (!is_known) {
    out.resize(before);
    out.push_back(numbers_.at("[UNK]"));
  }
}

std::vector<int64_t> WordPiece::encode(const std::string& text, size_t most)
    const {
  std::vector<int64_t> out = {numbers_.at("[CLS]")};
  for (const auto& word : words_of(text)) {
    add_word(word, out);
  }
  out.resize(std::min(out.size(), most - 1));
  out.push_back(numbers_.at("[SEP]"));
  return out;
}

} // namespace embed
