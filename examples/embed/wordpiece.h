// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer of uncased BERT: words without accents, split into the longest
// tokens in the vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace embed {

class WordPiece {
 public:
  /// Reads a vocab.txt with one token per line. Throws std::runtime_error if
  /// the file cannot be read.
  explicit WordPiece(const std::string& path);

  /// Returns at most `most` tokens, including [CLS] and [SEP].
  std::vector<int64_t> encode(const std::string& text, size_t most) const;

 private:
  void add_word(const std::string& word, std::vector<int64_t>& out) const;

  std::unordered_map<std::string, int64_t> numbers_;
};

} // namespace embed
