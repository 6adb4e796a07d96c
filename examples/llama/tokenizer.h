// SPDX-License-Identifier: BSD-3-Clause
// Converts text to tokens and back, with the vocabulary of a GGUF file: byte
// pairs as in GPT-2, or sentencepiece. Without a vocabulary, each byte is a
// token.
#pragma once

#include "vocabulary.h"

#include <dtensor/weights/weight_file.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace llama {

class Tokenizer {
 public:
  /// Creates a tokenizer of bytes.
  Tokenizer() = default;
  /// Throws std::runtime_error for an unsupported or incomplete vocabulary.
  explicit Tokenizer(const dtensor::WeightFile& file);

  /// Returns the tokens, including the beginning-of-text token if the
  /// vocabulary adds one.
  std::vector<int64_t> encode(const std::string& text) const;
  /// Returns the bytes of one token; empty for a control token. A sentencepiece
  /// text begins with a space.
  std::string decode(int64_t token) const;
  /// Returns true if the token ends the text.
  bool is_end(int64_t token) const {
    return token == end_;
  }
  /// Formats the text as a user's message to a chat model, if the file has the
  /// tokens for this format.
  std::string chat(const std::string& text) const;

 private:
  VocabularyPtr vocabulary_; // null: bytes
  std::map<std::string, int64_t> controls_;
  std::vector<bool> is_control_;
  int64_t begin_ = -1; // -1: none
  int64_t end_ = -1;
};

} // namespace llama
