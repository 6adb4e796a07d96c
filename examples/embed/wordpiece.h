// SPDX-License-Identifier: BSD-3-Clause
// Text to tokens as uncased BERT has them: words without accents, cut into the
// longest pieces that the vocabulary has.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace embed {

class WordPiece {
 public:
  /// Of a vocab.txt, a token a line. Throws std::runtime_error without one.
  explicit WordPiece(const std::string& path);

  /// Between [CLS] and [SEP], at most so many of them.
  std::vector<int64_t> encode(const std::string& text, size_t most) const;

 private:
  void add_word(const std::string& word, std::vector<int64_t>& out) const;

  std::unordered_map<std::string, int64_t> numbers_;
};

} // namespace embed
